// Shared libraries that are looked at before they are loaded.
#include <cstddef>
#include <span>
#include <string_view>

#include "elf_file.hpp"
#include "target.hpp"

import tessera.base;
import tessera.plugin;

using namespace tessera;

namespace {

const fuzz::Target plugin_file{
    "plugin_file", [](std::string_view input) {
      const auto bytes = std::as_bytes(std::span(input));
      plugin::StampPlace place;
      if (plugin::locate_stamp(bytes, place).empty()) {
        fuzz::expect(place.offset <= bytes.size() && place.size <= bytes.size() - place.offset,
                     "plugin: the stamp is not within the file");
      }
      plugin::DynamicSection dynamic;
      static_cast<void>(plugin::read_dynamic_section(bytes, dynamic));
      const plugin::StampReading reading = plugin::read_stamp(bytes);
      if (reading.stamp) {
        static_cast<void>(plugin::refused_kinds(*reading.stamp));
      }
    }};

}  // namespace
