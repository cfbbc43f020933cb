module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.parallel;
import :stage_messages;

namespace tessera {
namespace {

/// Bytes of a message.
constexpr std::size_t row = 4096;
using Row = std::array<char, row>;

Row row_of(const std::string& text) {
  if (text.size() >= row) {
    fail({.thing = "stages",
          .wrong = "what a stage says of its hidden states is too long",
          .expected = fmt::format("fewer than {} bytes", row),
          .got = fmt::format("{}", text.size())});
  }
  Row bytes{};
  text.copy(bytes.data(), text.size());
  return bytes;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::uint64_t number_of(std::string_view digits) {
  std::uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

/// "dropout 128", a line each.
std::string text_of(const Draws& draws) {
  std::string text;
  for (const auto& [name, count] : draws) {
    text += fmt::format("{} {}\n", name, count);
  }
  return text;
}

Draws draws_of(const std::vector<std::string>& lines, std::size_t first) {
  Draws draws;
  for (std::size_t i = first; i < lines.size(); ++i) {
    const std::size_t space = lines[i].rfind(' ');
    draws[lines[i].substr(0, space)] = number_of(std::string_view(lines[i]).substr(space + 1));
  }
  return draws;
}

/// Type, shape, layout: a line each.
std::string form_text(const Spec& spec) {
  std::string shape;
  for (const std::int64_t extent : spec.shape) {
    shape += fmt::format("{} ", extent);
  }
  return fmt::format("{}\n{}\n{}\n", name_of(spec.dtype), shape, to_string(spec.layout));
}

StatesForm form_of(const std::string& text, const DeviceMesh& mesh) {
  const std::vector<std::string> lines = lines_of(text);
  std::vector<std::int64_t> shape;
  std::string_view extents = lines.at(1);
  while (!extents.empty()) {
    const std::size_t space = extents.find(' ');
    shape.push_back(static_cast<std::int64_t>(number_of(extents.substr(0, space))));
    extents.remove_prefix(space + 1);
  }
  return {.spec = Spec::make(Layout::parse(mesh, lines.at(2)), Dims(shape),
                             dtype_from_name(lines.at(0)).value()),
          .draws = draws_of(lines, 3)};
}

}  // namespace

Draws draws_since(const RandomPosition& start) {
  Draws draws;
  for (const auto& [name, stream] : random_state()) {
    const auto before = start.streams.find(name);
    const std::uint64_t first = before == start.streams.end() ? 0 : before->second.offset;
    if (stream.offset != first) {
      draws[name] = stream.offset - first;
    }
  }
  return draws;
}

RandomPosition after(RandomPosition start, const Draws& draws) {
  for (const auto& [name, count] : draws) {
    auto found = start.streams.find(name);
    if (found == start.streams.end()) {  // it began in the stages before
      RandomStream fresh = random_stream(name);
      fresh.offset = 0;
      found = start.streams.emplace(name, fresh).first;
    }
    found->second.offset += count;
  }
  return start;
}

namespace {

collective::Communicator& communicator_of(const parallel::Stages& stages) {
  return collective::World::current().communicator(stages.group().group->ranks, "forms of stages");
}

}  // namespace

void StageMessages::send(int stage, const Tensor& states, const Draws& draws) {
  const std::string text = form_text(*states.spec()) + text_of(draws);
  if (states.is_meta()) {
    if (planned_) {
      planned_->after[stage] = text;
    }
    return;
  }
  const Row bytes = row_of(text);
  communicator_of(stages_).send(bytes.data(), row, DType::u8, stages_.place_of(stage + 1));
}

StatesForm StageMessages::receive(int stage, const DeviceMesh& mesh, bool on_meta) {
  if (!on_meta) {
    Row bytes{};
    communicator_of(stages_).receive(bytes.data(), row, DType::u8, stages_.place_of(stage - 1));
    return form_of(std::string(bytes.data()), mesh);
  }
  // A rank of several stages is planned before the ranks between them: states of one model have
  // one form, which is compared where those ranks are planned.
  const auto known = [&] { return planned_->after.lower_bound(stage); };
  if (!planned_ || known() == planned_->after.begin()) {
    fail({.thing = "stages",
          .wrong = fmt::format("{} is planned before the stages that it gets hidden states from",
                               stages_.text(stage)),
          .advice = "plan the stages in order, with one PlannedStates"});
  }
  return form_of(std::prev(known())->second, mesh);
}

StepEnd StageMessages::end(const StepEnd& own, bool on_meta) {
  if (on_meta) {
    return own;
  }
  Row bytes = row_of(fmt::format("{}\n{}", own.measured, text_of(own.draws)));
  communicator_of(stages_).broadcast(bytes.data(), row, DType::u8,
                                     stages_.place_of(stages_.count() - 1));
  const std::vector<std::string> lines = lines_of(std::string(bytes.data()));
  return {.measured = static_cast<std::int64_t>(number_of(lines.at(0))),
          .draws = draws_of(lines, 1)};
}

}  // namespace tessera
