"""Folders that other programs wrote: which files belong to them, their labels, and which files are not read.

Every format, source and command lists such folders by these functions, so all see the same samples.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iobench.base.errors import CorruptArtifact, expecting
from iobench.base.finding import Finding
from iobench.base.text import enumerated, shortened
from iobench.base.units import counted
from iobench.formats.schema import Array

JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
# those of torchvision's ImageFolder, and others of the same types
IMAGES = (*JPEG, ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
# files of which each may be a sample
ARRAYS = (".npy", ".npz", ".pt", ".pth", ".safetensors", ".h5", ".hdf5", ".gz")
PACKED = ".npy.gz"
# of what describes a folder per class, and lies in it
DESCRIBING = (
    *("", ".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".yaml", ".yml", ".xml", ".html", ".pdf", ".db"),
    *(".log", ".out", ".err", ".lock", ".tmp", ".sh"),
)
# data that may hold the labels of what lies beside them
BESIDE = (*ARRAYS, ".parquet", ".arrow", ".tar", ".tfrecord", ".mat", ".mdb", ".beton", ".bin", ".rec")
ARCHIVER = "__MACOSX"  # folder of what macOS's archiver knows of each file
NOT_READ = "not-read"  # kind of the note that counts files
SPLIT = re.compile(
    r"(?<![a-z])(train|training|val|valid|validation|dev|test|testing|eval)(?![a-z])", re.IGNORECASE
)
STATED = re.compile(r"(?:label|class|cls)[ _=-]?(\d+)", re.IGNORECASE)  # in a name: `img_7_label3`
NUMBERED = re.compile(r"(\D*?)[\W_]*\d+\)?|\d+[\W_]*(\D*)")  # words and one number: `cat.7`, `7_cat`
ROLES = re.compile(  # words that name what a file is to another one of the same sample
    r"(x|y|ima?ge?|photo|frame|scan|mask|seg(mentation)?|label|annotation|input|target|gt|truth|depth|left|right"
    r"|rgb|lr|hr)s?",
    re.IGNORECASE,
)
BELONGS = re.compile(  # those of them that are no data without the other file
    r"(mask|seg(mentation)?|label|annotation|target|gt|truth|depth|lr|hr)s?", re.IGNORECASE
)
MOST_LOOKS = 10_000  # entries below a folder by which its kind is recognized
MOST_NAMED = 9
MOST_ROLES = 4  # folders whose files of one name may be one sample
MOVE = "move it out of the folder"
APART = "if they belong to other files, move them out of the folder, or save both as fields of one .npz"
LABELLED = "put files into one subfolder per label, or name them like cat.1.jpg and dog.1.jpg"


def is_hidden(name: str) -> bool:
    """Return True for files and folders that systems and editors put next to a user's."""
    return name.startswith(".") or name == ARCHIVER


def entries_of(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a folder sorted by name, without hidden ones."""
    with os.scandir(folder) as scan:
        return sorted((one for one in scan if not is_hidden(one.name)), key=lambda one: one.name)


def file_of(path: Path) -> Path:
    """Return the file of a group, `FILE/GROUP`; the path itself if it is none."""
    return path if path.exists() else next((one for one in path.parents if one.is_file()), path)


def files_below(folder: str | os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
    """Yield all but folders below a folder, without hidden entries; links to folders are not followed."""
    for entry in entries_of(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(entry.path)
        elif not entry.is_dir():
            yield entry


def files_in(folder: Path, ends: str | tuple[str, ...]) -> list[Path]:
    """Return the files directly in a folder whose names end so, in natural order, without hidden ones."""
    names = (one for one in entries_of(folder) if one.name.endswith(ends) and not one.is_dir())
    return sorted((Path(one.path) for one in names), key=natural)


def natural(file: Path | str) -> list[str]:
    """Return a key by which `part2` comes before `part10`."""
    return [part.zfill(20) if part.isdigit() else part for part in re.split(r"(\d+)", str(file))]


def suffix_of(path: Path) -> str:
    """Return the suffix in small letters, with the one before `.gz`."""
    return "".join(path.suffixes[-2 if path.suffix.lower() == ".gz" else -1 :]).lower()


def has_suffix(name: str, suffixes: Collection[str]) -> bool:
    """Return whether a name ends in one of these suffixes, in any case."""
    return os.path.splitext(name)[1].lower() in suffixes


def is_class_folder(path: Path, suffixes: Collection[str], media: bool = False) -> bool:
    """Return True for a folder with files of these suffixes per class, and no other data in it.

    They lie in a subfolder per class, or have the class in their name. Files of `media` may have no class, if
    they are most files, and what is no data of other formats may lie beside them or such subfolders.
    """
    try:
        entries = entries_of(path)
        folders, plain = [entry for entry in entries if entry.is_dir()], {*DESCRIBING, *suffixes}
        other = [one for one in entries if not one.is_dir() and not has_suffix(one.name, plain)]
        if other and (not media or any(has_suffix(one.name, BESIDE) for one in other)):
            return False
        if any(holding := [_holds(folder, suffixes) for folder in folders]):
            return not other or all(holding)
        files = [one.name for one in entries if not one.is_dir()]
        names = [name for name in files if has_suffix(name, suffixes)]
        most = media and 2 * len(names) >= len(files) > 0
        return bool(labels_in_names(names)) or (most and not several_roles(names))
    except OSError:
        return False


def _holds(folder: os.DirEntry[str], suffixes: Collection[str]) -> bool:
    """Return whether one of the first files below a folder has one of these suffixes."""
    files = zip(files_below(folder.path), range(MOST_LOOKS), strict=False)
    return any(has_suffix(file.name, suffixes) for file, _ in files)


def contains_images(path: Path) -> bool:
    """Return whether a folder has images in subfolders and no other data, or more images than data in it."""
    loose = [entry.name for entry in entries_of(path) if not entry.is_dir()]
    images, others = (sum(has_suffix(name, some) for name in loose) for some in (IMAGES, BESIDE))
    return is_class_folder(path, IMAGES, media=True) or images > others


def labels_in_names(names: Sequence[str]) -> list[str]:
    """Return the word for the class in each file's name; empty where it is not certain.

    It is the number behind `label` or `class`, or the words of names that have one number at their end or
    start besides. Each class has two files on average at least, and words such as image and mask, or train
    and test, are none.
    """
    stems = [os.path.splitext(name)[0] for name in names]
    found = [STATED.search(stem) for stem in stems]
    if not all(found):
        found = [NUMBERED.fullmatch(stem) for stem in stems]
    words = ["".join(match.groups("")).strip(" _-.(") for match in found if match]
    several = 1 < len(set(words)) <= len(names) / 2 and len(words) == len(names) and all(words)
    none = [word for word in set(words) if ROLES.fullmatch(word) or SPLIT.fullmatch(word)]
    return words if several and not none else []


def words_in(name: str) -> list[str]:
    """Return the words in a name, also of `SegmentationClass` and `img_001_mask`."""
    return re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)


def several_roles(names: Sequence[str]) -> bool:
    """Return whether files have different roles by their names, as image and mask, or train and test."""
    words = (re.split(r"[\W\d_]+", os.path.splitext(name)[0].lower()) for name in names)
    roles = {frozenset(one for one in own if ROLES.fullmatch(one) or SPLIT.fullmatch(one)) for own in words}
    return len(roles) > 1


@dataclass(frozen=True)
class ClassFolder:
    """A folder with a subfolder per class, as torchvision's ImageFolder reads it; or of files named by class.

    `classes` are the names of its subfolders, sorted; the position of a name is its label. `files` are those
    of all classes, also in folders inside a class's; `labels` has the label of each. In a folder without such
    subfolders, `classes` are the words of `labels_in_names`, in natural order; where names tell none, there
    are no classes, and all labels are 0.
    """

    path: Path
    classes: tuple[str, ...]
    files: tuple[Path, ...]
    labels: Array

    @classmethod
    def of(cls, path: Path, suffixes: Collection[str], links: bool = False) -> ClassFolder:
        """List the files of these suffixes.

        CorruptArtifact of kind ``no-label`` for such a file beside subfolders that hold some, or without any
        if names say that files have several roles, ``several-splits`` for folders like train and val,
        ``no-files`` without a file, or ``link`` unless `links` are allowed.
        """
        files: list[Path] = []
        labels: list[int] = []
        with expecting(path, "a folder per class", OSError):
            entries = entries_of(path)
            folders = [entry for entry in entries if entry.is_dir()]
            loose = [one for one in entries if has_suffix(one.name, suffixes) and not one.is_dir()]
            linked = [Path(one.path) for one in folders if one.is_symlink()]
            for label, folder in enumerate(folders):
                own = [one for one in files_below(folder.path) if has_suffix(one.name, suffixes)]
                linked += [Path(one.path) for one in own if one.is_symlink()]
                files += sorted(Path(one.path) for one in own)
                labels += [label] * len(own)
        names = tuple(folder.name for folder in folders)
        loose_names = [one.name for one in loose]
        if not files and loose and not several_roles(loose_names):
            words = labels_in_names(loose_names)
            names = tuple(sorted(set(words), key=natural))
            numbers = {name: number for number, name in enumerate(names)}
            words = words or [""] * len(loose)
            named = {Path(one.path): numbers.get(word, 0) for one, word in zip(loose, words, strict=True)}
            files = sorted(named, key=natural)
            labels, linked = [named[file] for file in files], [file for file in files if file.is_symlink()]
        elif loose:
            hint = f"{LABELLED}, or move it out of the folder"
            raise CorruptArtifact(
                "it is in no label's subfolder, and its name tells none", "no-label", loose[0].path, hint=hint
            )
        if not files:
            problem = f"no file in its {counted(len(folders), 'subfolder')} ends in {enumerated(suffixes)}"
            raise CorruptArtifact(problem, "no-files", path)
        used = [names[label] for label in sorted(set(labels)) if names]
        if used and all(map(SPLIT.match, used)):
            problem = f"its folders are splits of a dataset, not labels: {enumerated(used, most=MOST_NAMED)}"
            data = [one for one in used if not any(map(BELONGS.fullmatch, words_in(one)))] or used
            hint = f"name one of them: {' or '.join(str(path / name) for name in data[:MOST_NAMED])}"
            if len(data) < len(used):
                hint += (
                    "; or save both as fields of one .npz, if the files of one belong to those of the other"
                )
            raise CorruptArtifact(problem, "several-splits", path, hint=hint)
        if linked and not links:
            raise CorruptArtifact("a symbolic link", "link", linked[0], expected="files in this folder")
        return cls(path, names, tuple(files), np.array(labels, np.int64))

    def names(self, content: str, given: Sequence[str] = ()) -> Sequence[str]:
        """Return the names of its fields, `content` and with classes `label`; those `given` if as many."""
        names = (content, *["label"] * bool(self.classes))
        return given if len(given) == len(names) else names

    def notes(self) -> list[Finding]:
        """Return how labels were taken, where folders lie inside those of the classes, or names say them.

        Also, if all files have one label though there are other folders or files that may say more.
        """
        if not self.classes:
            message = (
                f"{counted(len(self.files), 'file')} in no subfolder, whose names tell no label: no labels"
            )
            hint = f"if they have labels, {LABELLED}"
            return [Finding("no-labels", message, hint, {"files": len(self.files)})]
        used = set(self.labels.tolist())
        more = len(self.classes) > 1 or any(not one.is_dir() for one in entries_of(self.path))
        if len(used) == 1 and self.files[0].parent != self.path and more:
            name = self.classes[used.pop()]
            message = f"all {counted(len(self.files), 'file')} have one label, {name}"
            hint = "if labels are in another file, such as .json or .csv, the fields do not hold them"
            return [Finding("one-label", message, hint, {"files": len(self.files)})]
        if self.files[0].parent == self.path:
            counts = np.bincount(self.labels).tolist()
            some = enumerated(
                [f"{name} ({n:,})" for name, n in zip(self.classes, counts, strict=True)], MOST_NAMED
            )
            message, hint = (
                f"labels are taken from the files' names: {some}",
                f"if these are none, {LABELLED}",
            )
            return [Finding("named-labels", message, hint, {"labels": len(self.classes)})]
        inner = {file.parent for file in self.files if file.parent.parent != self.path}
        belonging = self._belonging()
        if not inner:
            return belonging or self._same_names() or self._role_folders()
        message = (
            f"the {counted(len(self.classes), 'label')} are the folders in {self.path.name}; "
            f"{counted(len(inner), 'folder')} inside them take the label of the outer one"
        )
        outer = min(inner).relative_to(self.path).parts[0]
        hint = f"if inner folders are the labels, name the outer one, such as {self.path / outer}"
        return [
            *(belonging or self._role_folders()),
            Finding("inner-folders", message, hint, {"labels": len(self.classes), "inner": len(inner)}),
        ]

    def _belonging(self) -> list[Finding]:
        """Return a note if masks and the like lie with what they belong to in most folders of labels."""
        depth, belonging = len(self.path.parts) + 1, np.zeros(len(self.files), bool)
        for number, file in enumerate(self.files):
            if BELONGS.search(os.fspath(file)):  # a quick look: few of a million names have such a word
                inside = " ".join((*file.parent.parts[depth:], file.stem))
                belonging[number] = any(map(BELONGS.fullmatch, words_in(inside)))
        used = np.unique(self.labels)
        mixed = np.intersect1d(self.labels[belonging], self.labels[~belonging])
        if not len(mixed) or 2 * len(mixed) < len(used):
            return []
        count, first = int(belonging.sum()), self.files[int(belonging.argmax())].name
        message = (
            f"{count:,} of {counted(len(self.files), 'file')} are named as masks or the like of others, "
            f"such as {first}: taken as samples with the labels of their folders"
        )
        return [Finding("roles", message, APART, {"files": len(self.files), "belonging": count})]

    def _role_folders(self) -> list[Finding]:
        """Return a note if all folders of labels are named by roles, or by roles and splits."""
        names = [self.classes[label] for label in np.unique(self.labels)]
        words = [words_in(name) for name in names]
        known = all(any(ROLES.fullmatch(one) or SPLIT.fullmatch(one) for one in own) for own in words)
        telling = (BELONGS.fullmatch(one) or SPLIT.fullmatch(one) for own in words for one in own)
        if not 1 < len(names) <= MOST_ROLES or not known or not any(telling):
            return []
        message = f"{enumerated(names)} are names of roles or splits: taken as {counted(len(names), 'label')}"
        return [Finding("roles", message, APART, {"labels": len(names), "files": len(self.files)})]

    def _same_names(self) -> list[Finding]:
        """Return a note if each folder has files of the same names, as images and their masks have."""
        used, counts = np.unique(self.labels, return_counts=True)
        if not 1 < len(used) <= MOST_ROLES or np.ptp(counts):
            return []
        stems = [file.stem for file in self.files]
        if len({frozenset(stems[low : low + counts[0]]) for low in range(0, len(stems), counts[0])}) > 1:
            return []
        names = [self.classes[label] for label in used]
        words = [word for name in names for word in words_in(name)]
        numbered = all(re.sub(r"copy|[\W_]", "", stem).isdecimal() for stem in stems)
        if numbered and not any(map(ROLES.fullmatch, words)):
            return []  # labels whose files are numbered alike
        message = f"{enumerated(names)} have files of the same names: taken as {counted(len(names), 'label')}"
        loads = {".npy": "numpy.load(f)"} | dict.fromkeys(IMAGES, "numpy.asarray(PIL.Image.open(f))")
        hint = "if those of one name are a sample, save both in one .npz; --files parts if each holds several"
        if load := loads.get(self.files[0].suffix.lower()):
            code = f"numpy.stack([{load} for f in sorted(pathlib.Path(d).iterdir())]) for d in {names}"
            hint = (
                f'if those of one name are a sample, save fields: numpy.savez("fields.npz", **{{d: {code}}})'
            )
        return [Finding("same-names", message, hint, {"labels": len(names), "files": len(stems)})]


def not_read(path: Path, read: Iterable[Path], reader: str) -> list[Finding]:
    """Return a note that counts the files below a folder by suffix that are not among those `read`.

    `reader` names what reads the folder.
    """
    own, counts, total = {os.fspath(file) for file in read}, Counter[str](), 0
    for folder, inner, names in os.walk(path):
        inner.sort()
        below = os.path.relpath(folder, path).split(os.sep) if folder != os.fspath(path) else []
        hidden = any(map(is_hidden, below))
        total += len(names)
        for name in names:
            if os.path.join(folder, name) not in own:
                suffix = os.path.splitext(name)[1].lower() or "without a suffix"
                counts["hidden" if hidden or is_hidden(name) else suffix] += 1
    if not counts:
        return []
    parts = [f"{count:,} {word}" for word, count in counts.most_common()]
    message = (
        f"{reader} did not read {sum(counts.values()):,} of {counted(total, 'file')}: "
        f"{enumerated(parts, most=MOST_NAMED)}"
    )
    return [Finding(NOT_READ, message, None, {"files": total, "not_read": sum(counts.values()), **counts})]


def parts_not_read(noun: str, names: Collection[str], place: str = " of each sample") -> list[Finding]:
    """Return a note that counts files, features or arrays that are not read, by default of each sample."""
    if not names:
        return []
    message = f"{counted(len(names), noun)}{place} not read: {enumerated(sorted(names), MOST_NAMED)}"
    return [Finding(NOT_READ, message, None, {f"{noun}s": len(names)})]


MATLAB = "MATLAB_class"
# of NetCDF, and of MATLAB 7.3, which say what the numbers stand for
ATTRIBUTES = ("scale_factor", "add_offset", "_FillValue", "missing_value", MATLAB)


def attribute_notes(attributes: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return notes about arrays whose attributes, here by field, say that the numbers stand for others."""
    notes = []
    for name, named in attributes.items():
        known = {key: named[key] for key in ATTRIBUTES if key in named}
        told = {key: shortened(str(np.ravel(value)[0])) for key, value in known.items() if np.size(value)}
        if MATLAB in told:
            message = f"{name}: MATLAB wrote it, so its first axis is the last here"
            hint = "if a sample is not what MATLAB calls x(:, …, i), save its transpose"
            notes.append(Finding("matlab-order", message, hint, {"field": name}))
        scaled = {key: value for key, value in told.items() if key != MATLAB and value != "nan"}
        if scaled:
            listing = ", ".join(f"{key}={value}" for key, value in scaled.items())
            message = f"{name}: the stored numbers are read, without {listing}"
            hint = "apply them in the training, or save what xarray.open_dataset makes of them"
            notes.append(Finding("not-decoded", message, hint, {"field": name, **scaled}))
    return notes


# attributes that say how numbers are stored or what they measure: of HDF5, PyTables, MATLAB, NetCDF and its
# conventions, and Zarr
DESCRIBING_ATTRIBUTES = re.compile(
    r"_.*|CLASS|NAME|TITLE|VERSION|FLAVOR|NROWS|EXTDIM|FIELD_.*|IMAGE_.*|DIMENSION_.*|REFERENCE_LIST|PYTABLES.*"
    r"|MATLAB_.*|H5PATH|iobench|units|(long|standard)_name|axis|calendar|coordinates|positive|Conventions|title"
    r"|history|institution|source|references|comment|missing_value|valid_(min|max|range)|scale_factor"
    r"|add_offset|cell_methods|grid_mapping.*|bounds"
)


def attributes_not_read(names: Iterable[str]) -> list[Finding]:
    """Return a note that counts attributes that may be labels, without those that describe the numbers."""
    own = {name for name in names if not DESCRIBING_ATTRIBUTES.fullmatch(name)}
    return parts_not_read("attribute", own, "")


def said_by_names(path: Path, parts: Iterable[Path], noun: str = "file") -> list[Finding]:
    """Return notes of what the names of parts say: values of a column, and several splits of a dataset."""
    names = [os.path.relpath(part, path).split(os.sep) for part in parts]
    columns = {word.split("=")[0] for one in names for word in one if "=" in word}
    notes = parts_not_read("column", columns, " in names of folders")
    matches = (next(filter(None, map(SPLIT.search, words)), None) for words in names)
    counts = Counter(match[1].lower() for match in matches if match)
    if len(counts) > 1:
        some = enumerated([counted(count, f"{name} {noun}") for name, count in counts.items()])
        place = " after '::'" if noun == "group" else ", or put its files into a folder of their own"
        hint = f"to measure one alone, name its {noun}{place}"
        notes.append(Finding("several-splits", f"read as one dataset: {some}", hint, dict(counts)))
    return notes
