#include "modes.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <random>

#include "fault.hpp"
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

Modes::Modes(std::uint64_t drawn_by)
    : seed(drawn_by), only_lists(std::getenv("TESSERA_EMULATOR_LAUNCHES") != nullptr) {
  if (seed == 0) {
    return;
  }
  std::mt19937_64 numbers(seed);
  constexpr std::size_t drawn_places[] = {6, 12, 40, 1024};
  places = drawn_places[numbers() % std::size(drawn_places)];
  copies_block = numbers() % 3 != 0;
  context_bytes = (std::size_t{200} + numbers() % 800) << 20;
}

void Modes::list(const std::string& kernel, unsigned blocks, unsigned threads,
                 std::uint64_t elements) const {
  if (!only_lists) {
    return;
  }
  static const int file = open(std::getenv("TESSERA_EMULATOR_LAUNCHES"),
                               O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  const std::string line = text("launch ", kernel, " ", blocks, " ", threads, " ", elements, "\n");
  if (write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw Fault("the emulator cannot write the file TESSERA_EMULATOR_LAUNCHES");
  }
}

std::string Modes::describe() const {
  return text("TESSERA_EMULATOR_MODES=", seed, " (a stream's queue takes ", places.load(),
              " tasks, copies of ordinary memory ", copies_block ? "block" : "are late",
              ", a context takes ", context_bytes >> 20, " MiB)");
}

}  // namespace emulator
