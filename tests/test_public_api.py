"""What `import bert_tf` offers."""

import subprocess
import sys

import pytest

import bert_tf


@pytest.mark.parametrize("name", bert_tf.__all__)
def test_every_public_name_can_be_had(name):
    assert getattr(bert_tf, name) is not None


def test_all_names_are_listed():
    assert set(bert_tf.__all__) == {*bert_tf._HOMES, "__version__"}
    assert set(bert_tf.__all__) <= set(dir(bert_tf))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'BertModle'"):
        _ = bert_tf.BertModle


def test_importing_the_package_imports_no_framework():
    code = (
        "import sys, bert_tf; bert_tf.BertConfig; "
        "print({'tensorflow', 'keras'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
