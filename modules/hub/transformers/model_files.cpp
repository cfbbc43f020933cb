module;
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.stores;

namespace tessera::hub {
namespace {

template <std::size_t N>
bool ends_with_any(std::string_view name, const std::array<std::string_view, N>& endings) {
  return std::ranges::any_of(endings,
                             [&](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace

void leave_out_other_formats(std::vector<stores::ListedObject>& objects) {
  constexpr std::array<std::string_view, 8> never = {".h5", ".msgpack", ".onnx",    ".onnx_data",
                                                     ".ot", ".tflite",  ".mlmodel", ".mlpackage"};
  constexpr std::array<std::string_view, 6> besides = {".bin",  ".pt",   ".pth",
                                                       ".ckpt", ".gguf", ".bin.index.json"};
  const auto is_consolidated = [](std::string_view name) {
    return name.substr(name.rfind('/') + 1).starts_with("consolidated");
  };
  const bool has_safetensors = std::ranges::any_of(objects, [&](const auto& object) {
    return object.name.ends_with(".safetensors") && !is_consolidated(object.name);
  });
  std::erase_if(objects, [&](const auto& object) {
    return ends_with_any(object.name, never) ||
           (has_safetensors &&
            (ends_with_any(object.name, besides) || is_consolidated(object.name)));
  });
}

}  // namespace tessera::hub
