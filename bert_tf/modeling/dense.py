"""The dense layer of every block: half precision, LoRA, int8."""

from collections.abc import Callable, Iterator

import keras
import numpy as np
from keras import ops

from bert_tf.errors import InputError
from bert_tf.modeling import kernels

# The LoRA adapters of a dense layer: the attributes of Keras's layer.
_ADAPTERS = ("lora_kernel_a", "lora_kernel_b")


@keras.saving.register_keras_serializable("bert_tf")
class Dense(keras.layers.Dense):
    """Keras's dense layer, with faster half precision, LoRA and int8."""

    def call(self, inputs, training=None):
        """Maps floats [..., F] to [..., units]."""
        return self._apply(self._product, inputs)

    def activated(self, x, activation: Callable):
        """Maps floats [..., F] to the activation of the product."""
        if kernels.are_passes_compiled():
            # As rows, `x` would lose the sizes that `kernels.is_fused` needs.
            return activation(self(x))
        return self._apply(lambda rows: activation(self(rows)), x)

    def _apply(self, function: Callable, x):
        """Applies a function of [N, F] or [..., F] to floats [..., F]."""
        # On CPUs TensorFlow fuses the bias, and a GELU, into the matrix product
        # of rows, unless the product is reshaped first. Keras's product of
        # other shapes has more operations, which take longer to trace. On TPUs
        # rows take 7 % more memory.
        is_plain = len(x.shape) == 2 or keras.config.backend() != "tensorflow"
        if is_plain or kernels.is_all_compiled():
            return function(x)
        *outer, width = ops.shape(x)
        rows = function(ops.reshape(x, (-1, width)))
        return ops.reshape(rows, (*outer, rows.shape[-1]))

    def _product(self, x):
        """Maps floats [..., F] to [..., units]."""
        if not self.lora_enabled:
            return super().call(x)
        # Keras computes x (W + A B): the gradient of A B is as large as W, and
        # bfloat16 would round away small changes to W.
        change = ops.matmul(
            ops.matmul(x, self.lora_kernel_a), self.lora_kernel_b
        )
        y = ops.matmul(x, self._kernel)
        if self.bias is not None:
            y = ops.add(y, self.bias)
        y = ops.add(y, (self.lora_alpha / self.lora_rank) * change)
        return self.activation(y)

    def enable_lora(self, rank, lora_alpha=None, **kwargs):
        """Adds LoRA adapters, which are trained even if the layer is frozen.

        Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language
        Models". The kernel W acts as W + lora_alpha / rank * A B, with A
        [F, rank] and B [rank, units], which starts as zeros.
        """
        # For a saved layer, Keras's `build` passes the rank but no lora_alpha.
        if lora_alpha is None:
            lora_alpha = self.lora_alpha
        super().enable_lora(rank, lora_alpha=lora_alpha, **kwargs)
        self.train_adapters()

    def train_adapters(self) -> None:
        """Trains the LoRA adapters, if any, instead of the kernel."""
        if self.lora_enabled:
            self.lora_kernel_a.trainable = True
            self.lora_kernel_b.trainable = True
            self._kernel.trainable = False

    def merged_kernel(self) -> np.ndarray:
        """Returns the kernel plus the adapters' scaled product, [F, units]."""
        kernel, a, b = map(
            ops.convert_to_numpy,
            (self._kernel, self.lora_kernel_a, self.lora_kernel_b),
        )
        product = np.float32(self.lora_alpha / self.lora_rank) * (a @ b)
        return (kernel + product).astype(kernel.dtype)

    def merge_lora(self) -> None:
        """Adds the product of the adapters to the kernel and removes them."""
        self._kernel.assign(self.merged_kernel())
        for name in _ADAPTERS:
            self._untrack_variable(getattr(self, name))
            setattr(self, name, None)
        self._kernel.trainable = self.trainable
        self.lora_enabled = False
        self.lora_rank = self.lora_alpha = None

    def save_own_variables(self, store):
        """Saves the adapters beside the kernel; Keras would merge them."""
        enabled, self.lora_enabled = self.lora_enabled, False
        try:
            super().save_own_variables(store)
        finally:
            self.lora_enabled = enabled
        for name in _ADAPTERS if enabled else ():
            store[name] = getattr(self, name)

    def load_own_variables(self, store):
        """Loads a layer; adapters that `store` lacks get initial values."""
        if not self.lora_enabled:
            super().load_own_variables(store)
            return
        # Keras sets A and B to zero, which leaves them without a gradient.
        a = ops.convert_to_numpy(self.lora_kernel_a)
        super().load_own_variables(store)
        self.lora_kernel_a.assign(a)
        for name in _ADAPTERS:
            if name in store:
                getattr(self, name).assign(store[name])

    def quantize(self, mode=None, type_check=True, **options):
        """Converts the kernel to int8.

        Raises:
          InputError: If the mode is not "int8".
        """
        if mode != "int8":
            raise InputError(
                f"The quantization mode must be 'int8'; got {mode!r}."
            )
        # Keras checks for its own class, not for subclasses.
        super().quantize(mode, type_check=False, **options)

    def build_quantized(self, config: dict | None) -> None:
        """Makes `build` create an int8 kernel from a `QuantizationConfig`."""
        self.quantization_config = keras.saving.deserialize_keras_object(config)
        self.dtype_policy = f"int8_from_{self.dtype_policy.name}"


def dense_layers(
    layer: keras.layers.Layer, path: str = ""
) -> Iterator[tuple[str, Dense]]:
    """Yields the dense layers in a layer, with their paths."""
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        inner_path = f"{path}{inner.name}"
        if isinstance(inner, Dense):
            yield inner_path, inner
        yield from dense_layers(inner, f"{inner_path}/")


def adapted_layers(model: keras.layers.Layer) -> dict[str, Dense]:
    """Returns the dense layers with LoRA adapters, by their paths."""
    return {path: x for path, x in dense_layers(model) if x.lora_enabled}
