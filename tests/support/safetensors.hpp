#pragma once
// Reads and writes safetensors files, apart from the library: a u64 length, a JSON header, the
// bytes.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

struct StoredTensor {
  std::string dtype;  // "F32", "I64"...
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

inline std::map<std::string, StoredTensor> read_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("cannot read " + path);
  }
  std::uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string header(length, ' ');
  file.read(header.data(), static_cast<std::streamsize>(length));
  std::map<std::string, StoredTensor> tensors;
  const auto parsed = nlohmann::json::parse(header);
  for (const auto& [key, value] : parsed.items()) {
    if (key == "__metadata__") {
      continue;
    }
    StoredTensor t;
    t.dtype = value.at("dtype").get<std::string>();
    t.shape = value.at("shape").get<std::vector<std::int64_t>>();
    const auto range = value.at("data_offsets").get<std::vector<std::uint64_t>>();
    t.bytes.resize(range[1] - range[0]);
    file.seekg(static_cast<std::streamoff>(8 + length + range[0]));
    file.read(reinterpret_cast<char*>(t.bytes.data()),
              static_cast<std::streamsize>(t.bytes.size()));
    tensors.emplace(key, std::move(t));
  }
  return tensors;
}

inline void write_safetensors(const std::string& path,
                              const std::map<std::string, StoredTensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {}) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << text << data;
  if (!file.flush()) {
    throw std::runtime_error("cannot write " + path);
  }
}
