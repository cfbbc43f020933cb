// tessera-stamp FILE: writes the digest of a plugin's content into its stamp. The last step of a
// plugin's build; whatever changes the file later (strip, an edited RPATH) must be followed by it.
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "elf_file.hpp"
#include "tessera/plugin_gate.h"

using namespace tessera::plugin;

namespace {

int refuse(const std::string& file, const std::string& why) {
  std::fprintf(stderr, "tessera-stamp: %s: %s\n", file.c_str(), why.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tessera-stamp FILE.so\n");
    return 2;
  }
  const std::string path = argv[1];
  std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
  if (!stream) {
    return refuse(path, "it cannot be opened for writing; build into a folder that you can write");
  }
  const std::vector<char> content{std::istreambuf_iterator<char>(stream), {}};
  const auto bytes = std::as_bytes(std::span(content));
  StampPlace place;
  if (const std::string why = locate_stamp(bytes, place); !why.empty()) {
    return refuse(path, why);
  }
  if (place.size != sizeof(GateStamp)) {
    return refuse(path, "the stamp has the wrong size (expected " +
                            std::to_string(sizeof(GateStamp)) + " bytes, got " +
                            std::to_string(place.size) +
                            "); build it and this tool with one Tessera");
  }
  const std::size_t at = place.offset + offsetof(GateStamp, digest);
  const Digest digest = content_digest(bytes, at);
  stream.clear();
  stream.seekp(static_cast<std::streamoff>(at));
  stream.write(reinterpret_cast<const char*>(digest.data()), digest.size());
  stream.close();
  return stream ? 0 : refuse(path, "it cannot be written; is the disk full?");
}
