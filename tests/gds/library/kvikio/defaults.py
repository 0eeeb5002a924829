compat, settings = False, {}


def is_compat_mode_preferred():
    return compat


def set(name, value):
    settings[name] = value
