"""Small encoders of texts in folders, as Hugging Face exports them, made here."""

import json

import numpy as np
from onnx import TensorProto, helper, numpy_helper

WORDS = ("[UNK]", "[CLS]", "[SEP]", "good", "bad", "cat", "dog", "the")
WIDTH = 6
UNKNOWN_TO_THE_MODEL = "owl"
"""A word that the tokenizer knows and the model does not."""


def table(seed=0):
    """The vectors of WORDS."""
    return np.random.default_rng(seed).standard_normal((len(WORDS), WIDTH)).astype(np.float32)


def tokenizer():
    """A tokenizer of words, which cuts after two tokens and fills up to 16 unless it is told otherwise."""
    vocabulary = {word: index for index, word in enumerate((*WORDS, UNKNOWN_TO_THE_MODEL))}
    return {
        "version": "1.0",
        "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {
            "strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[UNK]",
        },
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip


def model(vectors, nodes=(), inputs=("input_ids", "attention_mask"), output="y"):
    """A model whose output is the tokens' vectors, or what `nodes` make of them (y)."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["y"]), *nodes],
        "made",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "tokens"]) for name in inputs],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(vectors, "table")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return made.SerializeToString()


def write_encoder(folder, *, content=None, pooling="mean_tokens", tokens=8, **files):
    """Write an encoder's folder. files: the contents of others by their stems, in JSON; None for none."""
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    (folder / "onnx" / "model.onnx").write_bytes(model(table()) if content is None else content)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modules = [{"type": f"sentence_transformers.models.{name}"} for name in ("Transformer", "Pooling", "Normalize")]
    written = {
        "tokenizer": tokenizer(),
        "modules": modules,
        "sentence_bert_config": {"max_seq_length": tokens, "do_lower_case": False},
        "1_Pooling/config": {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": False}
        | ({f"pooling_mode_{pooling}": True} if pooling else {}),
    } | files
    for name, said in written.items():
        if said is not None:
            (folder / f"{name}.json").write_text(said if isinstance(said, str) else json.dumps(said))
    return folder
