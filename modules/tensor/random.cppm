export module tessera.tensor:random;

import tessera.base;

export namespace tessera {

/// A sequence of random numbers: element i of a call gets number (offset + i) of the stream, on
/// every device and in every layout (Philox 4x32-10; docs/architecture.md, "Numbers that do not
/// depend on the layout").
struct RandomStream {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  // from the stream's name
  std::uint64_t offset = 0;
};

/// The calling rank's stream of this name; made with the rank's seed at first use.
RandomStream& random_stream(std::string_view name = "default");
/// Sets the seed of all streams of the calling rank and lets them begin anew.
void set_seed(std::uint64_t seed);
/// Takes `count` numbers: returns the offset of the first and moves on by `count` rounded up to 4.
std::uint64_t take_numbers(RandomStream& stream, std::int64_t count);

/// All streams by name, to be saved and restored.
std::map<std::string, RandomStream> random_state();
void set_random_state(const std::map<std::string, RandomStream>& state);

}  // namespace tessera
