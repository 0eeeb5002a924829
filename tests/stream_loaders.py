"""StreamLoaders whose options are given beside their other arguments."""

from dataclasses import fields

from iobench import StreamLoader, StreamOptions

NAMES = {field.name for field in fields(StreamOptions)}


def stream_loader(path, **given):
    options = StreamOptions(**{name: value for name, value in given.items() if name in NAMES})
    others = {name: value for name, value in given.items() if name not in NAMES}
    return StreamLoader(path, **others, options=options)
