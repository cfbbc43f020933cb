export module tessera.hub:model_files;

import tessera.base;
import tessera.stores;

export namespace tessera::hub {

/// Leaves out of the files of a model's repository what this library does not read: weights in
/// other formats (ONNX, TensorFlow, Flax, ...), and weights that are there as safetensors too
/// (PyTorch's files, GGUF, `consolidated*`).
void leave_out_other_formats(std::vector<stores::ListedObject>& objects);

}  // namespace tessera::hub
