module tessera.hub:quantized_folder;

import tessera.base;
import tessera.models;
import tessera.checkpoint;

// Folders of transformers whose linear layers have weights in codes: GPTQ, AWQ, bitsandbytes.

namespace tessera::hub {

/// The tensors of a model folder with X.weight [out, in] in the place of the parts in which its
/// config.json says (quantization_config) that weights are stored; the tensors themselves where it
/// names none of these methods. Values have the type of the scales, or the one that the parts name;
/// 8 bits of bitsandbytes f32. Errors (input), before a value is read: a key or value of
/// quantization_config that is not understood; parts that are missing or do not fit each other. In
/// reading: a group that there is not.
std::unique_ptr<TensorSource> decoded_folder(std::unique_ptr<TensorSource> folder);

/// What quantization_config may have as its quant_method: those, and what the family reads.
std::vector<std::string> readable_forms(const models::ModelFamily& family);

}  // namespace tessera::hub
