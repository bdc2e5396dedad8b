"""Imports every module and prints the classes of `Disclosed` that the list of what leaves does not reach."""

import importlib
import pkgutil

import dpserve.accounting
import dpserve.audit
import dpserve.service
import dpserve.training
from dpserve.accounting.disclosure import Disclosed
from dpserve.audit.reports import ReportTable
from dpserve.disclosures import everything


def subclasses(base):
    """Each class below another."""
    for each in base.__subclasses__():
        yield each
        yield from subclasses(each)


def reached(leaving):
    """The classes that what leaves is made of: their own, their bases and those in their fields."""
    found = set()
    waiting = [leaving]
    while waiting:
        one = waiting.pop()
        if isinstance(one, type) and issubclass(one, Disclosed) and one not in found:
            found.add(one)
            waiting += [*one.__mro__, *getattr(one, "__annotations__", {}).values()]
        else:
            waiting += getattr(one, "__args__", ()) if not isinstance(one, type) else ()
    return found


def main():
    """Print each class's name."""
    for package in (dpserve.accounting, dpserve.audit, dpserve.service, dpserve.training):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(("ray_sums", "ray_workers")):
                importlib.import_module(module.name)
    known = set().union(*(reached(kind) for leaving in everything() for kind in leaving.kinds)) | {ReportTable}
    for each in {one for one in subclasses(Disclosed) if one.__module__.startswith("dpserve.")} - known:
        print(each.__qualname__)


if __name__ == "__main__":
    main()
