"""The forms that a pay-once model can be taken away in, each one file."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal, cast, get_args

from dpserve.accounting.disclosure import Declared, Disclosed, Released
from dpserve.training.errors import NotExportable

Form = Literal["onnx", "safetensors"]
FORMS: tuple[Form, ...] = get_args(Form)


@dataclass(frozen=True)
class Exported(Disclosed):
    """A file, whole."""

    content: Annotated[bytes, Released("model")]
    suffix: Declared[str]


_FILES: Mapping[Form, tuple[str, str]] = {
    "onnx": (".onnx", "onnx_file"),
    "safetensors": (".safetensors", "safetensors_file"),
}
"""For each form its files' suffix, and the module with the function of the same name: imported where it is wanted."""


def exported(model: Any, form: str) -> Exported:
    """Return the file of a model.

    Raises NotExportable for a form that there is not and for a model that is not private itself, and MissingExtra for a
    form whose library is not installed.
    """
    if form not in _FILES:
        raise NotExportable(f"there is no form {form!r} to take a model away in; there are {', '.join(FORMS)}")
    # Imported here: a service should not wait for what few clients ask of it.
    from dpserve.training.export.classifier import classifier_of

    classifier = classifier_of(model)
    suffix, name = _FILES[cast(Form, form)]
    write = getattr(import_module(f"dpserve.training.export.{name}"), name)
    return Exported(write(classifier), suffix)
