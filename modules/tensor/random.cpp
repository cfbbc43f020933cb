module;
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
module tessera.tensor;

namespace tessera {
namespace {

struct Streams {
  std::uint64_t seed = 0;
  std::map<std::string, RandomStream, std::less<>> by_name;
};

Streams& streams() {
  thread_local Streams instance;
  return instance;
}

/// FNV-1a: a stream's number is a function of its name alone.
std::uint64_t number_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace

RandomStream& random_stream(std::string_view name) {
  Streams& s = streams();
  auto found = s.by_name.find(name);
  if (found == s.by_name.end()) {
    found = s.by_name.emplace(std::string(name), RandomStream{s.seed, number_of(name), 0}).first;
  }
  return found->second;
}

void set_seed(std::uint64_t seed) {
  Streams& s = streams();
  s.seed = seed;
  s.by_name.clear();
}

std::uint64_t take_numbers(RandomStream& stream, std::int64_t count) {
  const std::uint64_t first = stream.offset;
  stream.offset += (static_cast<std::uint64_t>(count) + 3) / 4 * 4;
  return first;
}

std::map<std::string, RandomStream> random_state() {
  return {streams().by_name.begin(), streams().by_name.end()};
}

void set_random_state(const std::map<std::string, RandomStream>& state) {
  Streams& s = streams();
  s.by_name.clear();
  for (const auto& [name, stream] : state) {
    s.by_name.emplace(name, stream);
    s.seed = stream.seed;
  }
}

}  // namespace tessera
