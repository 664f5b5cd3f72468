import dataclasses
import json
import logging

import pytest

from bert_tf.config import ACTIVATIONS, BertConfig
from bert_tf.errors import InputError
from bert_tf.interop import huggingface
from bert_tf.interop.checkpoint import HEADS
from bert_tf.interop.huggingface import ARCHITECTURES, to_json
from bert_tf.interop.huggingface_names import PARTS_OF_HEAD
from tests.interop.huggingface_folders import config_dict, write_json
from tests.interop.small_models import CONFIG

# What the Hub's oldest config.json says; the very file of Google's release.
OLDEST = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": 512,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
# What others add: settings of training, of generation, of old versions.
EXTRAS = {
    "_name_or_path": "somewhere",
    "bos_token_id": 0,
    "chunk_size_feed_forward": 64,
    "classifier_dropout": 0.3,
    "directionality": "bidi",
    "do_sample": False,
    "finetuning_task": "mrpc",
    "gradient_checkpointing": False,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "layer_norm_eps": 1e-12,
    "model_type": "bert",
    "output_past": True,
    "pad_token_id": 0,
    "pooler_fc_size": 768,
    "position_embedding_type": "absolute",
    "problem_type": None,
    "pruned_heads": {},
    "torch_dtype": "float16",
    "transformers_version": "4.57.6",
    "use_cache": True,
}


def read(tmp_path, values):
    write_json(tmp_path, "config.json", values)
    return huggingface.read_config(str(tmp_path / "config.json"))


@pytest.mark.parametrize("more", [{}, EXTRAS], ids=["oldest", "with extras"])
def test_reads_what_is_published(tmp_path, more):
    described = read(tmp_path, OLDEST | more)
    expected = BertConfig.from_name("tiny", 30522)
    assert described.config == dataclasses.replace(
        expected, hidden_act="gelu_erf"
    )
    assert described.architecture is None
    assert described.labels is None


def test_an_absent_key_means_what_it_means_to_transformers(tmp_path):
    """And not what it means to Google's code, which has 16 types."""
    assert read(tmp_path, {"vocab_size": 7}).config == BertConfig(
        7, hidden_act="gelu_erf", type_vocab_size=2
    )


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gelu", "gelu_erf"),
        ("gelu_python", "gelu_erf"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("gelu_fast", "gelu_tanh"),
        ("relu", "relu"),
        ("tanh", "tanh"),
        ("linear", "linear"),
    ],
)
def test_reads_activations(tmp_path, theirs, ours):
    values = OLDEST | {"hidden_act": theirs}
    assert read(tmp_path, values).config.hidden_act == ours


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_writes_activations(tmp_path, name):
    config = dataclasses.replace(CONFIG, hidden_act=name)
    values = json.loads(to_json(config, "encoder"))
    assert read(tmp_path, values).config == config


def test_a_model_that_looks_to_the_left_is_refused_in_one_line():
    config = dataclasses.replace(CONFIG, attention_direction="left_to_right")
    with pytest.raises(InputError) as error:
        to_json(config, "encoder")
    assert str(error.value) == (
        "expected a model that looks both ways, for transformers pools [CLS] "
        "whatever it sees. Received: attention_direction='left_to_right'"
    )
    assert "attention_direction" not in json.loads(to_json(CONFIG, "encoder"))


def test_the_two_gelus_have_the_names_that_transformers_gave_them():
    tanh, erf = (
        json.loads(
            to_json(dataclasses.replace(CONFIG, hidden_act=act), "encoder")
        )["hidden_act"]
        for act in ("gelu_tanh", "gelu_erf")
    )
    assert (tanh, erf) == ("gelu_new", "gelu")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model_type": "roberta"}, "model_type 'bert'. Received: 'roberta'"),
        ({"model_type": "distilbert"}, "Received: 'distilbert'"),
        ({"model_type": None}, "Received: None"),
        ({"hidden_act": "silu"}, "Received: 'silu'"),
        ({"hidden_act": "quick_gelu"}, "Received: 'quick_gelu'"),
        ({"hidden_act": "gelu_10"}, "Received: 'gelu_10'"),
        ({"hidden_act": ["gelu"]}, r"Received: \['gelu'\]"),
        ({"hidden_act": None}, "Received: None"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps 1e-12. Received: 1e-05"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'"),
        ({"is_decoder": True}, "is_decoder False. Received: True"),
        ({"add_cross_attention": True}, "cross_attention False. Received: T"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings to be true, f"),
        ({"problem_type": "ranking"}, "problem_type to be one of regression"),
        ({"problem_type": ["regression"]}, "problem_type to be one of"),
        ({"classifier_dropout": "0.1"}, "classifier_dropout to be a number"),
        ({"classifier_dropout": 1}, "classifier_dropout to be a number"),
        ({"classifier_dropout": True}, "classifier_dropout to be a number"),
        ({"id2label": {"0": "a", "1": None}}, "a name for class 1 in id2label"),
        ({"id2label": {"0": ["a"]}}, "a name for class 0 in id2label"),
        ({"architectures": ["BertLMHeadModel"]}, "'BertLMHeadModel', which"),
        ({"hidden_size": 127}, "hidden_size that num_attention_heads divides"),
        ({"hidden_size": "128"}, "positive integer as hidden_size"),
        ({"num_hidden_layers": -1}, "positive integer as num_hidden_layers"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob. Received: 1.5"),
        ({"id2label": {"0": "a", "2": "b"}}, "classes '0', '1', '2'"),
        ({"id2label": {"a": 0, "b": 1}}, "classes '0', '1', '2'"),
        ({"id2label": ["a", "b"]}, "classes '0', '1', '2'"),
    ],
)
def test_refuses_what_it_cannot_compute(tmp_path, change, complaint):
    read(tmp_path, OLDEST)
    with pytest.raises(InputError, match=complaint) as caught:
        read(tmp_path, OLDEST | change)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(f"(in {tmp_path}/config.json)")


def test_a_vocab_size_must_be_given(tmp_path):
    values = {k: v for k, v in OLDEST.items() if k != "vocab_size"}
    with pytest.raises(InputError, match="'vocab_size'"):
        read(tmp_path, values)


@pytest.mark.parametrize("content", ["", "{", "[]", "\xff", '"bert"'])
def test_refuses_a_file_that_holds_something_else(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=r"config\.json"):
        huggingface.read_config(str(path))
    path.unlink()
    with pytest.raises(InputError, match=r"config\.json: No such file"):
        huggingface.read_config(str(path))


@pytest.mark.parametrize("head", HEADS)
def test_reads_what_it_writes(tmp_path, head):
    described = read(tmp_path, json.loads(to_json(CONFIG, head, ["x", "y"])))
    assert described.config == CONFIG
    assert described.architecture == ARCHITECTURES[head]
    assert described.labels == ("x", "y")
    assert described.head(PARTS_OF_HEAD[head]) == head


def test_labels_stand_in_the_order_of_their_numbers(tmp_path):
    names = [f"label {n}" for n in range(12)]
    values = json.loads(to_json(CONFIG, "token", names))
    shuffled = dict(sorted(values["id2label"].items()))
    assert list(shuffled)[1:3] == ["1", "10"]
    described = read(tmp_path, values | {"id2label": shuffled})
    assert described.labels == tuple(names)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"0": "LABEL_0", "1": "LABEL_1"}, None),
        ({"0": "LABEL_0", "1": "yes"}, ("LABEL_0", "yes")),
        ({"0": "LABEL_1", "1": "LABEL_0"}, ("LABEL_1", "LABEL_0")),
        ({"0": "LABEL_0", "1": "LABEL_00"}, ("LABEL_0", "LABEL_00")),
        ({"0": "LABEL_1", "1": "LABEL_2"}, ("LABEL_1", "LABEL_2")),
        ({"0": "a", "1": "a"}, ("a", "a")),
        ({"0": 0, "1": 1}, ("0", "1")),
        ({"1": "b", "0": "a"}, ("a", "b")),
        ({}, None),
        (None, None),
    ],
)
def test_numbered_labels_are_none(tmp_path, labels, expected):
    assert read(tmp_path, OLDEST | {"id2label": labels}).labels == expected


def test_numbered_labels_come_back_as_none(tmp_path):
    labels = huggingface.numbered_labels(11)
    values = json.loads(to_json(CONFIG, "classifier", labels))
    assert values["id2label"]["10"] == "LABEL_10"
    assert values["label2id"]["LABEL_10"] == 10
    assert read(tmp_path, values).labels is None


def test_writes_what_is_not_ascii_as_it_is():
    assert '"é"' in to_json(CONFIG, "token", ["é"])


def test_classes_that_share_a_name_are_kept_with_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        values = json.loads(to_json(CONFIG, "token", ["a", "b", "a"]))
    assert values["id2label"] == {"0": "a", "1": "b", "2": "a"}
    assert values["label2id"] == {"a": 0, "b": 1}
    [record] = caplog.records
    assert "share the name 'a'" in record.getMessage()
    assert read(tmp_path, values).labels == ("a", "b", "a")


@pytest.mark.parametrize(
    ("value", "expected"), [(None, True), (True, True), (False, False)]
)
def test_tells_whether_masked_lm_is_tied(tmp_path, value, expected):
    values = OLDEST | {"tie_word_embeddings": value}
    assert read(tmp_path, values).is_tied is expected
    assert read(tmp_path, OLDEST).is_tied


@pytest.mark.parametrize("name", ["RobertaModel", "BertForSentenceEmbedding"])
def test_warns_in_one_line_of_another_class(tmp_path, caplog, name):
    with caplog.at_level(logging.WARNING):
        read(tmp_path, config_dict())
        assert not caplog.records
        read(tmp_path, config_dict(architectures=[name]))
    [record] = caplog.records
    assert f"by the class '{name}'" in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize("name", [None, "BertForSentenceEmbedding"])
def test_without_a_known_class_the_weights_tell(tmp_path, name):
    values = config_dict(architectures=[name] if name else None)
    described = read(tmp_path, values)
    assert described.head({"encoder", "masked_lm"}) == "masked_lm"
    assert described.head({"encoder", "pooler", "classes"}) is None


@pytest.mark.parametrize("architectures", [[], "BertModel", [7], {}])
def test_a_strange_list_of_classes_tells_nothing(tmp_path, architectures):
    values = config_dict(architectures=architectures)
    assert read(tmp_path, values).architecture is None


@pytest.mark.parametrize("said", ["encoder", "masked_lm", "next_sentence"])
def test_a_pretraining_checkpoint_by_the_name_of_a_part(tmp_path, said):
    """So bert-base-uncased is published: as a BertForMaskedLM."""
    described = read(tmp_path, config_dict(said))
    assert described.head(PARTS_OF_HEAD["pretraining"]) == "pretraining"
    assert described.head(PARTS_OF_HEAD[said]) == said


@pytest.mark.parametrize("head", HEADS[1:])
def test_a_class_without_its_weights(tmp_path, head):
    described = read(tmp_path, config_dict(head))
    with pytest.raises(InputError, match=f"of a {ARCHITECTURES[head]}, as"):
        described.head({"encoder"})
    assert described.head({*PARTS_OF_HEAD[head], "pooler"}) == head


def test_an_encoder_may_have_no_pooler(tmp_path):
    assert read(tmp_path, config_dict("encoder")).head({"encoder"}) == "encoder"


def test_a_class_that_is_one_of_many_is_told_by_its_name(tmp_path):
    parts = {"encoder", "pooler", "classes"}
    for head in ("classifier", "choice", "token"):
        assert read(tmp_path, config_dict(head)).head(parts) == head
