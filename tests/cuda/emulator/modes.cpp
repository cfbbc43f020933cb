#include "modes.hpp"

#include <cstdlib>
#include <iterator>
#include <random>

#include "text.hpp"

namespace emulator {
namespace {

std::uint64_t number_of_modes() {
  const char* const value = std::getenv("TESSERA_EMULATOR_MODES");
  return value == nullptr ? 0 : std::strtoull(value, nullptr, 10);
}

}  // namespace

Modes& Modes::instance() {
  static auto* modes = new Modes(number_of_modes());
  return *modes;
}

Modes::Modes(std::uint64_t drawn_by) : seed(drawn_by) {
  if (seed == 0) {
    return;
  }
  std::mt19937_64 numbers(seed);
  constexpr std::size_t drawn_places[] = {6, 12, 40, 1024};
  places = drawn_places[numbers() % std::size(drawn_places)];
  copies_block = numbers() % 3 != 0;
  context_bytes = (std::size_t{200} + numbers() % 800) << 20;
}

std::string Modes::describe() const {
  return text("TESSERA_EMULATOR_MODES=", seed, " (a stream's queue takes ", places.load(),
              " tasks, copies of ordinary memory ", copies_block ? "block" : "are late",
              ", a context takes ", context_bytes >> 20, " MiB)");
}

}  // namespace emulator
