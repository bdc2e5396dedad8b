"""Public text encoders: a text as the direction of the vector that a frozen model gives it.

The model lies in a folder as Hugging Face and sentence-transformers export it: `tokenizer.json`; `model.onnx` or
`onnx/model.onnx`, one file without external data; in `1_Pooling/config.json` how tokens' vectors become one; in
`sentence_bert_config.json` or `tokenizer_config.json` the most tokens. What is read of it is a value, `TextEncoding`,
with the digests of both files. It is part of the certificate.

Promises:

- One text, one vector, whatever is computed before it, beside it or after it. Each text runs by itself, at its own
  length, without padding, on one thread; several threads compute several texts. What is left are bits that differ
  between processors of other kinds and releases of ONNX Runtime: another vector there is another question.
- Bounded work. Of a text its first `CHARACTERS` characters for each token that the model takes are looked at, and of
  what the tokenizer makes of them the first `tokens` tokens: no text costs more, and a short one costs less.
- Length 1, or 0. Only the direction of a vector counts. One that is zero or not finite, or that the model cannot
  compute, counts as zeros.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from pydantic import ConfigDict, Field, ValidationError

from dpserve.accounting.arrays import Floats
from dpserve.accounting.disclosure import Declared, DisclosedModel
from dpserve.accounting.faults_in_words import in_words
from dpserve.training.errors import BundleError, DataError, extra
from dpserve.training.onnx_runtime import first_line, open_session
from dpserve.training.regular_files import read_regular, sha256_of

MODEL_FILE, TOKENIZER_FILE = "text-encoder.onnx", "text-encoder-tokenizer.json"
"""In a bundle."""
CHARACTERS = 64
"""Characters that are looked at for each token that a model takes: words have five or so, and some texts spaces."""
MOST_TOKENS = 8192
LARGEST_WIDTH = 8192
"""Numbers of a vector."""
_LARGEST_SETTINGS = 2**20
_LARGEST = {MODEL_FILE: 2**31, TOKENIZER_FILE: 2**27}
"""Bytes of a file."""
_LONGEST_WORD = 1000
"""Characters of a word in which WordPiece may look for its pieces: it takes their square."""

Pooling = Literal["cls", "mean", "max", "mean_sqrt_len", "lasttoken", "model"]
"""The vector of a text: that of its first token, the tokens' mean, the largest of each number, their sum over the
root of their count (with the mean's direction), that of the last token; or what the model makes of them itself."""

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_MODULES = ("Transformer", "Pooling", "Normalize")
_PUBLIC_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "word",
    "A second sentence, of another length, and with numbers: 3.14159 and 42.",
)


class TextEncoding(DisclosedModel):
    """Which public encoder a text is encoded with, and how.

    name: its folder's, which says it to people. tokens: the most that count of a text, those that mark its ends
    included. width: numbers of a vector.
    """

    model_config = ConfigDict(extra="forbid")

    name: Declared[str] = Field(min_length=1, max_length=255)
    model_sha256: Declared[str] = Field(pattern=r"^[0-9a-f]{64}$")
    tokenizer_sha256: Declared[str] = Field(pattern=r"^[0-9a-f]{64}$")
    pooling: Declared[Pooling]
    tokens: Declared[int] = Field(ge=1, le=MOST_TOKENS)
    width: Declared[int] = Field(ge=1, le=LARGEST_WIDTH)

    @property
    def sha256(self) -> str:
        """The digest of all that decides what becomes of a text: of everything here but the name."""
        content = self.model_dump(exclude={"name"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def characters(self, texts: Sequence[str]) -> int:
        """Return how many characters of texts are looked at, and those of a token more for each of them."""
        return sum(CHARACTERS + min(len(text), CHARACTERS * self.tokens) for text in texts)

    @property
    def files(self) -> dict[str, str]:
        """The digests of both files, by their names in a bundle."""
        return {MODEL_FILE: self.model_sha256, TOKENIZER_FILE: self.tokenizer_sha256}


class TextEncoder:
    """Computes the directions of texts. Safe to call from several threads."""

    def __init__(self, name: str, model: Path, tokenizer: Path, pooling: Pooling | None, tokens: int) -> None:
        """Open both files. pooling: None where nothing says how, which the model has to do itself then.

        Raises TrainingError for what cannot be used.
        """
        self._paths = {MODEL_FILE: model, TOKENIZER_FILE: tokenizer}
        contents = self._contents()
        self._tokenizer = _tokenizer(contents[TOKENIZER_FILE], tokens)
        self._session = open_session(contents[MODEL_FILE], threads=1)
        self._types = {node.name: _integers(node) for node in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0].name
        self._longest = CHARACTERS * tokens
        self._pooling: Pooling | None = pooling
        if (pooled := self._output_of(_PUBLIC_TEXTS[0]).ndim == 2) or pooling is None:
            if not pooled:
                raise DataError("nothing says how the tokens' vectors become one: there is no 1_Pooling/config.json")
            self._pooling = "model"
        vector = self._vector(_PUBLIC_TEXTS[0])
        self._check_apart()
        self.encoding = TextEncoding(
            name=name,
            model_sha256=hashlib.sha256(contents[MODEL_FILE]).hexdigest(),
            tokenizer_sha256=hashlib.sha256(contents[TOKENIZER_FILE]).hexdigest(),
            pooling=self._pooling,
            tokens=tokens,
            width=len(vector),
        )

    def files(self) -> dict[str, bytes]:
        """Return the files' contents by their names in a bundle. Raises BundleError where one is another by now."""
        contents, encoding = self._contents(), self.encoding
        for name, sha256 in encoding.files.items():
            if hashlib.sha256(contents[name]).hexdigest() != sha256:
                raise BundleError(f"{self._paths[name]} was changed after it was read")
        return contents

    def _contents(self) -> dict[str, bytes]:
        try:
            return {name: read_regular(path, _LARGEST[name]) for name, path in self._paths.items()}
        except OSError as error:
            raise DataError(f"cannot read {error.filename}: {error.strerror or error}") from error

    def directions(self, texts: Sequence[str]) -> Floats:
        """Return a vector of length 1, but for rounding, or zeros for each text: (n, width), each by itself."""
        if len(texts) < 2:
            return np.array([self._direction(text) for text in texts]).reshape(len(texts), self.encoding.width)
        return np.array(list(_threads().map(self._direction, texts)))

    def _direction(self, text: str) -> Floats:
        """Return v / |v|: no number of it is above 1, as |v_i| <= |v|, and every rounding is monotone."""
        try:
            vector = self._vector(text)
        except DataError:
            return np.zeros(self.encoding.width)
        largest = float(np.abs(vector).max())
        if not 0 < largest < math.inf:
            return np.zeros(self.encoding.width)
        vector /= largest
        return vector / math.sqrt(sum(coordinate * coordinate for coordinate in vector.tolist()))

    def _vector(self, text: str) -> Floats:
        """Return what becomes of a text, (width,). Raises DataError for what cannot be computed."""
        output = self._output_of(text)
        assert self._pooling is not None
        return output[0] if output.ndim == 2 else _pooled(output[0], self._pooling)

    def _output_of(self, text: str) -> Floats:
        """Return what the model gives for a text alone: (1, tokens, width) or (1, width)."""
        # A text in JSON may hold half a character, which no tokenizer takes.
        known = text[: self._longest].encode("utf-8", "replace").decode()
        tokens = np.array([self._tokenizer.encode(known).ids], dtype=np.int64)
        of_all = {_INPUTS[0]: tokens, _INPUTS[1]: np.ones_like(tokens), _INPUTS[2]: np.zeros_like(tokens)}
        feeds = {name: of_all[name].astype(kind) for name, kind in self._types.items()}
        if not tokens.size:
            raise DataError("the tokenizer leaves nothing of a text")
        try:
            output = np.asarray(self._session.run([self._output], feeds)[0], dtype=np.float64)
        except Exception as error:
            raise DataError(f"the encoder cannot compute a text: {first_line(error)}") from error
        if output.shape[0] != 1 or output.ndim not in (2, 3) or not output.size:
            raise DataError(f"the encoder gives {output.shape} for a text, not a vector, or one for each of its tokens")
        return output

    def _check_apart(self) -> None:
        """Compute public texts in two orders. Raises DataError where another vector comes out."""
        once = [self._vector(text).tobytes() for text in _PUBLIC_TEXTS]
        if once != [self._vector(text).tobytes() for text in _PUBLIC_TEXTS[::-1]][::-1]:
            raise DataError(
                "the encoder gives another vector for the same text, so that one record would move others' features, "
                "which no proof here covers: export it for inference, without random numbers"
            )


_open: dict[str, TextEncoder] = {}
"""Those that were read, by the digests of their encodings: an encoder is the same wherever it lies."""


def opened(sha256: str) -> TextEncoder | None:
    """Return the encoder of an encoding with this digest, if it was read here."""
    return _open.get(sha256)


def read_text_encoder(folder: Path, sha256: str | None = None) -> TextEncoder:
    """Read a public encoder's folder; columns with its digest can encode from then on.

    sha256: the digest that its encoding must have; None for any. Raises TrainingError for what cannot be used.
    """
    if not folder.is_dir():
        what = "it is no folder" if folder.exists() else "there is no such folder"
        raise DataError(f"cannot read the encoder {folder}: {what}")
    models = [path for path in (folder / "model.onnx", folder / "onnx" / "model.onnx") if path.is_file()]
    if not models:
        raise DataError(f"{folder} has neither model.onnx nor onnx/model.onnx: export the encoder to ONNX")
    name = folder.absolute().name or "encoder"
    try:
        encoder = TextEncoder(name, models[0], folder / "tokenizer.json", _pooling(folder), _tokens(folder))
    except ValidationError as error:
        raise DataError(f"{folder}: {in_words(error.errors()[0])}") from error
    if sha256 is not None and encoder.encoding.sha256 != sha256:
        raise DataError(f"the encoder in {folder} has the SHA-256 {encoder.encoding.sha256}, not {sha256}")
    # The same encoder may lie in several folders, and is called as the one that was asked for.
    _open[encoder.encoding.sha256] = encoder
    return encoder


def open_bundled(folder: Path, encoding: TextEncoding) -> None:
    """Open a bundle's encoder. Raises BundleError for one that is not there or is another."""
    if encoding.sha256 in _open:
        return
    for name, sha256 in encoding.files.items():
        try:
            digest = sha256_of(folder / name, _LARGEST[name])
        except OSError as error:
            raise BundleError(f"{folder} lacks its text encoder: cannot read {name}: {error.strerror}") from error
        if digest != sha256:
            raise BundleError(f"{folder / name} has the SHA-256 {digest}, and the certificate says {sha256}")
    pooling = None if encoding.pooling == "model" else encoding.pooling
    opened = TextEncoder(encoding.name, folder / MODEL_FILE, folder / TOKENIZER_FILE, pooling, encoding.tokens)
    if opened.encoding != encoding:
        raise BundleError("the text encoder is not the one that the certificate describes")
    _open[encoding.sha256] = opened


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """Return one thread for each processor: what a text becomes does not depend on their number."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="encoding")


def _tokenizer(content: bytes, tokens: int) -> Any:
    """Return the tokenizer that a file describes, which cuts texts after so many tokens and fills none up."""
    with extra("texts", "an encoder of texts"):
        from tokenizers import Tokenizer
    model = _object(content, "tokenizer.json").get("model")
    if isinstance(model, dict) and model.get("type") == "WordPiece":
        longest = model.get("max_input_chars_per_word", 100)
        if not isinstance(longest, int) or longest > _LONGEST_WORD:
            raise DataError(
                f"tokenizer.json looks for pieces in words of {longest} characters, which takes too long: "
                f"max_input_chars_per_word may be {_LONGEST_WORD}"
            )
    try:
        tokenizer = Tokenizer.from_buffer(content)
        tokenizer.no_padding()
        tokenizer.enable_truncation(tokens)
    except Exception as error:
        raise DataError(f"tokenizer.json cannot be used: {error}") from error
    return tokenizer


def _integers(given: Any) -> type[np.generic]:
    """Return the type of a model's input. Raises DataError for an input that no text fills."""
    kinds: Mapping[str, type[np.generic]] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
    if given.name not in _INPUTS or given.type not in kinds:
        raise DataError(
            f"the encoder's input {given.name!r} takes {given.type}; a text gives whole numbers for "
            f"{', '.join(_INPUTS)}"
        )
    return kinds[given.type]


def _pooled(vectors: Floats, pooling: Pooling) -> Floats:
    """Return one vector of those of the tokens (n, width). A sum over a root has the direction of the mean."""
    if pooling == "max":
        largest: Floats = vectors.max(axis=0)
        return largest
    if pooling in ("cls", "lasttoken"):
        return np.array(vectors[0 if pooling == "cls" else -1])
    mean: Floats = vectors.mean(axis=0)
    return mean


def _pooling(folder: Path) -> Pooling | None:
    """Return how tokens' vectors become one; None where nothing says it. Raises DataError for what is not known."""
    modules = _settings(folder / "modules.json", [])
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules if isinstance(module, dict)]
    if unknown := [kind for kind in kinds if kind not in _MODULES]:
        raise DataError(
            f"{folder / 'modules.json'} has a step {unknown[0]}, which is not computed here: export a model "
            "that has it inside"
        )
    default = _settings(folder / "config_sentence_transformers.json", {}).get("default_prompt_name")
    if default is not None:
        raise DataError(f"the encoder puts the prompt {default!r} before every text, which is not done here")
    if _settings(folder / "sentence_bert_config.json", {}).get("do_lower_case"):
        raise DataError("sentence_bert_config.json has do_lower_case: let the tokenizer's normalizer do it")
    settings = _settings(folder / "1_Pooling" / "config.json", None)
    if settings is None:
        return None
    modes = [
        name.removeprefix("pooling_mode_") for name, on in settings.items() if on is True and "pooling_mode_" in name
    ]
    modes = [mode.removesuffix("_tokens").removesuffix("_token") for mode in modes]
    if isinstance(settings.get("pooling_mode"), str):
        modes = [settings["pooling_mode"]]
    known = [pooling for pooling in get_args(Pooling) if pooling != "model"]
    if len(modes) != 1 or modes[0] not in known:
        raise DataError(
            f"1_Pooling/config.json must have one of {', '.join(known)}, not {' and '.join(modes) or 'none'}"
        )
    return cast(Pooling, modes[0])


def _tokens(folder: Path) -> int:
    """Return the most tokens of a text that the folder declares. Raises DataError where it does not."""
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        declared = _settings(folder / name, {}).get(key)
        # A tokenizer without a limit says 10^30.
        if isinstance(declared, int) and 1 <= declared <= MOST_TOKENS:
            return declared
    raise DataError(
        f"{folder} does not say how many tokens the model takes, up to {MOST_TOKENS:,}: "
        'write {"max_seq_length": 256}, for example, into sentence_bert_config.json'
    )


def _settings(path: Path, nothing: Any) -> Any:
    """Return what a file of settings holds, of the type of `nothing`, or that where there is no such file."""
    try:
        content = read_regular(path, _LARGEST_SETTINGS)
    except FileNotFoundError:
        return nothing
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return _parsed(content, path.name, list if isinstance(nothing, list) else dict)


def _object(content: bytes, name: str) -> dict[str, Any]:
    return cast(dict[str, Any], _parsed(content, name, dict))


def _parsed(content: bytes, name: str, kind: type) -> Any:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise DataError(f"{name} must hold {'a list' if kind is list else 'an object'}")
    return value
