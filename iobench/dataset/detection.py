"""The format that reads data of other programs; for what none reads, how to convert it."""

from __future__ import annotations

import re
import shlex
import zipfile
from collections.abc import Sequence
from pathlib import Path

from iobench import formats
from iobench.base.errors import MissingDependency, SourceError
from iobench.base.files import regular
from iobench.base.text import listed
from iobench.dataset import sandbox
from iobench.dataset.file_set import TABLES, Detected, data_files
from iobench.formats.folders import BESIDE, LABELLED, contains_images, entries_of, has_suffix, suffix_of

HEAD_BYTES = 4096  # of a file, by which it is recognized
PACKED = {  # by the first bytes: the program, and how to unpack
    b"\x1f\x8b": ("gzip", "gunzip -k"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "unzstd"),
    b"\xfd7zXZ": ("xz", "unxz -k"),
    b"BZh": ("bzip2", "bunzip2 -k"),
}
IMAGE = 'numpy.save("{stem}.npy", numpy.asarray(PIL.Image.open("{name}"))[None])'
SOUND = 'numpy.save("{stem}.npy", soundfile.read("{name}", dtype="float32")[0])'
TEXT = 'numpy.save("{stem}.npy", numpy.loadtxt("{name}"))'
PICKLE = 'numpy.savez("{stem}.npz", **{read}("{name}")), of a dict or a table; it runs what the file says'
SQL = 'pandas.read_sql("SELECT * FROM …", sqlite3.connect("{name}")).to_parquet("{stem}.parquet")'
VOLUME = 'numpy.save("{stem}.npy", numpy.moveaxis(numpy.asarray(nibabel.load("{name}").dataobj), -1, 0))'
TABLE = 'pandas.{read}("{name}").to_csv("{stem}.csv", index=False)'
CONVERSIONS = {  # one line of Python
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"), IMAGE),
    **dict.fromkeys((".wav", ".flac", ".ogg", ".mp3"), SOUND),
    **dict.fromkeys((".txt", ".dat", ".data"), TEXT),
    **dict.fromkeys((".pkl", ".pickle"), PICKLE.replace("{read}", "pandas.read_pickle")),
    ".joblib": PICKLE.replace("{read}", "joblib.load"),
    ".arff": 'pandas.DataFrame(scipy.io.arff.loadarff("{name}")[0]).to_csv("{stem}.csv", index=False)',
    ".json": 'pandas.read_json("{name}").to_json("{stem}.jsonl", orient="records", lines=True)',
    **dict.fromkeys((".nii", ".nii.gz"), VOLUME),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), SQL),
    ".fits": 'numpy.save("{stem}.npy", astropy.io.fits.getdata("{name}").astype("float32"))',
    ".feather": 'pandas.read_feather("{name}").to_parquet("{stem}.parquet")',
    ".orc": 'pandas.read_orc("{name}").to_parquet("{stem}.parquet")',
    ".xlsx": TABLE.replace("{read}", "read_excel"),
    ".xls": TABLE.replace("{read}", "read_excel"),
    ".dta": TABLE.replace("{read}", "read_stata"),
    ".sav": TABLE.replace("{read}", "read_spss"),
    ".sas7bdat": TABLE.replace("{read}", "read_sas"),
}
MATLAB = (  # for several files: a single one is read
    'numpy.savez("{stem}.npz", **{{k: v.squeeze() for k, v in scipy.io.loadmat("{name}").items() '
    'if k[0] != "_" and v.dtype.kind in "biufc"}})'
)
LIBSVM = re.compile(rb"[-+.,\deE]+(?: \d+:[-+.\deE]+)+\s")  # a label, and numbers of columns with values
LIBSVM_TO_ARRAYS = (
    'x, y = sklearn.datasets.load_svmlight_file("{name}"); numpy.savez("{stem}.npz", x=x.toarray(), y=y)'
)
READ = ".npy, .npz, .pt, .csv, .tsv, .jsonl, .h5, .hdf5, .mat, .nc"
ADAPTED = {  # single files that no format reads in place, by suffix: the adapter
    ".npz": "npz",
    ".pt": "torch",
    ".pth": "torch",
    **TABLES,
    ".mat": "mat",
    ".nc": "netcdf",
}


def detect(path: Path, flag: str, files: str | None = None, selected: Sequence[str] = ()) -> Detected:
    """Return the only format that recognizes data; `files` is the relation of those in a folder, if given.

    SourceError if it is not exactly one, MissingDependency if its library is not installed; `flag` is the
    option of the command that names one.
    """
    result, adds = sandbox.sniff(path, files, selected), flag == "--format"
    if result.ambiguity:
        hint = f"give {flag} {result.formats[0]}" if result.formats else f"give {flag}"
        if result.members:
            members = [shlex.quote(str(path / name)) for name in [*result.members][:3]]
            ways = [f"'iobench add {member}'" for member in members] if adds else members
            hint = f"{'add' if adds else 'name'} one of them: {' or '.join(ways)}" + (
                f", or {hint}" if result.formats else ""
            )
        raise SourceError(result.ambiguity, "ambiguous-format", path, hint=hint)
    if adds and path.is_dir() and result.formats[:1] != ("images",) and contains_images(path):
        problem, hint = "its images are in no subfolder, and their names tell no label", LABELLED
        if beside := [one.name for one in entries_of(path) if has_suffix(one.name, BESIDE)]:
            problem = f"{beside[0]} may hold the samples, or the labels of the images beside it"
            hint = "give --format images to read the images alone, or move one of both out of the folder"
        raise SourceError(problem, "unrecognized", path, hint=hint)
    tables = not adds or result.formats[:1] not in [(kind,) for kind in TABLES.values()]
    if tables and result.formats:
        name = result.formats[0]
        try:
            if name not in sandbox.ADAPTERS:
                formats.parse(name)
        except MissingDependency as error:
            problem = f"this looks like {name}: {error.problem}"
            raise error.changed(path=path, problem=problem) from None
        return Detected(name, result.notes)
    if not tables or (adds and suffix_of(path) in ADAPTED and not path.is_dir()):
        problem = f"{path.suffix or result.formats[0]} is not read in place"
        hint = f"convert it with 'iobench prepare --source {shlex.quote(str(path))}'"
        raise SourceError(problem, "unrecognized", path, hint=hint)
    if not path.is_dir():
        raise unrecognized(path, flag)
    if (other := _of_one_kind(path, flag)) is not None:
        raise other
    asked = ", ".join(name for name in formats.names() if name not in result.missing)
    missing = f"; libraries missing for {listed(result.missing)}" if result.missing else ""
    raise SourceError(
        f"no format recognizes the folder ({asked}{missing}), and it contains no image",
        "unrecognized",
        path,
        hint=f"give {flag} if it is one of them; otherwise convert it first; {LABELLED}",
    )


def _of_one_kind(path: Path, flag: str) -> SourceError | None:
    """Return the error for a folder whose files have one suffix that says how to read or convert them."""
    every = data_files(path)
    suffixes = {suffix_of(one) for one in every}
    if len(suffixes) > 1:
        suffixes = {one for one in suffixes if formats.meant(one[1:])}
    if len(suffixes) != 1:
        return None
    (suffix,) = suffixes
    files = [one for one in every if suffix_of(one) == suffix]
    problem = f"a folder of {suffix} files is not read"
    if code := CONVERSIONS.get(suffix, MATLAB if suffix == ".mat" else ""):
        first = files[0].name
        hint = f"convert each: {code.format(name=first, stem=first.removesuffix(suffix))}"
    elif suffix in ADAPTED:
        hint = f"name one of them: {shlex.quote(str(files[0]))}"
    elif name := formats.meant(suffix[1:]):
        problem = f"what its {suffix} files hold is not certain"
        hint = f"if they are {name}, give {flag} parts:of={name}"
    else:
        return None
    return SourceError(problem, "unrecognized", path, hint=hint)


def unrecognized(path: Path, flag: str) -> SourceError:
    """Return the error for a file that no format recognizes; `flag` is the option that names one."""
    suffix, problem = path.suffix.lower(), f"{path.suffix or 'a file without a suffix'} is not read"
    if name := formats.meant(suffix[1:]):
        problem = f"what the {suffix} file holds is not certain"
    with open(regular(path), "rb") as file:
        head = file.read(HEAD_BYTES)
    packed = _packed_by(path, head)
    if packed:
        problem, hint = packed
    elif LIBSVM.match(head):
        problem = "text as of LIBSVM is not read"
        hint = "convert it: " + LIBSVM_TO_ARRAYS.format(name=path.name, stem=path.stem)
    elif suffix in CONVERSIONS:
        hint = "convert it: " + CONVERSIONS[suffix].format(name=path.name, stem=path.stem)
        if CONVERSIONS[suffix] in (IMAGE, SOUND):
            hint = f"give a folder of such files, in one subfolder per label; or {hint}"
    else:
        usual = f"if it is {name}, give {flag} {name}; " if name else ""
        hint = f"{usual}{READ} and folders are read, other files where {flag} names their format"
    return SourceError(problem, "compressed" if packed else "unrecognized", path, hint=hint)


def _packed_by(path: Path, head: bytes) -> tuple[str, str] | None:
    """Return problem and hint for a file that is packed; None for any other."""
    name = shlex.quote(path.name)
    for magic, (program, command) in PACKED.items():
        if head.startswith(magic):
            return f"it is packed by {program}", f"unpack it: {command} {name}"
    if not head.startswith(b"PK") or path.suffix.lower() in CONVERSIONS:  # Excel's files are zip archives
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            names = {Path(entry).name for entry in archive.namelist()}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return None
    zarr = bool(names & {"zarr.json", ".zgroup", ".zarray"})
    folder = shlex.quote(path.stem.removesuffix(".zarr") + ".zarr" * zarr)
    kind = "a Zarr store in a zip archive" if zarr else "a zip archive"
    return f"it is {kind}", f"unpack it, and give the folder: unzip {name} -d {folder}"
