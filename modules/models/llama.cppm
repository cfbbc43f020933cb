// The built-in family: Llama.
module tessera.models:llama;

import tessera.base;
import :family;

namespace tessera::models {

std::unique_ptr<ModelFamily> llama_family();

}  // namespace tessera::models
