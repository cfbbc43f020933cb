module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
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

std::string text_of(const StepEnd& end) {
  return fmt::format("{}\n{}", end.measured, text_of(end.draws));
}

StepEnd end_of(const std::string& text) {
  const std::vector<std::string> lines = lines_of(text);
  return {.measured = static_cast<std::int64_t>(number_of(lines.at(0))),
          .draws = draws_of(lines, 1)};
}

/// In one line.
std::string shown(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

void check_as_before(const std::string& what, const std::string& before, const std::string& now) {
  if (now != before) {
    fail({.thing = "stages",
          .wrong = fmt::format("{} is not what it was in other steps of this kind", what),
          .expected = shown(before),
          .got = shown(now),
          .advice = "a value that changes what modules compute belongs into StepFunctions::guards; "
                    "after other changes of the model, make a new Training"});
  }
}

}  // namespace

bool StageStates::exact() const {
  return std::ranges::all_of(kinds, [](const auto& kind) {
    return !kind.second.end.empty() && kind.second.end_exact &&
           std::ranges::all_of(kind.second.after,
                               [](const auto& states) { return states.second.exact; });
  });
}

void StageMessages::begin(const std::string& kind, bool on_meta) {
  kind_ = kind;
  on_meta_ = on_meta;
  entered_.clear();
  const auto find_in = [&](const std::map<std::string, StageStates::Kind>& kinds) {
    const auto found = kinds.find(kind);
    known_ = found != kinds.end() && !found->second.end.empty();
    now_ = known_ ? found->second : StageStates::Kind();
    return known_;
  };
  if (!(planned_ && find_in(planned_->kinds)) && !on_meta) {
    find_in(told_);
  }
}

bool StageMessages::is_exact(int stage, int micro_batch) const {
  while (stage > 0 && stages_.is_own(stage - 1)) {
    --stage;
  }
  const auto entered = entered_.find({stage, micro_batch});
  return entered == entered_.end() || entered->second;
}

void StageMessages::send(int stage, int micro_batch, const Tensor& states, const Draws& draws) {
  const std::string text = form_text(*states.spec()) + text_of(draws);
  const std::pair<int, int> place(stage, micro_batch);
  if (on_meta_) {
    if (planned_) {
      planned_->kinds[kind_].after[place] = {text, is_exact(stage, micro_batch)};
    }
    return;
  }
  if (known_) {
    check_as_before("what leaves " + stages_.text(stage), now_.after[place].text, text);
    return;
  }
  const Row bytes = row_of(text);
  communicator_of(stages_).send(bytes.data(), row, DType::u8, stages_.place_of(stage + 1));
  now_.after[place] = {text};
}

StatesForm StageMessages::receive(int stage, int micro_batch, const DeviceMesh& mesh) {
  if (on_meta_) {
    return planned_form(stage, micro_batch, mesh);
  }
  std::string& text = now_.after[{stage - 1, micro_batch}].text;
  if (!known_) {
    Row bytes{};
    communicator_of(stages_).receive(bytes.data(), row, DType::u8, stages_.place_of(stage - 1));
    text = bytes.data();
  }
  return form_of(text, mesh);
}

/// A rank of several stages is planned before the ranks between them: states of one model have one
/// form, which is right for its memory, and is looked at where those ranks are planned.
StatesForm StageMessages::planned_form(int stage, int micro_batch, const DeviceMesh& mesh) {
  if (planned_) {
    const auto& after = planned_->kinds[kind_].after;
    for (int before = stage - 1; before >= 0; --before) {
      auto found = after.find({before, micro_batch});
      if (found == after.end()) {
        found = after.lower_bound({before, 0});
      }
      if (found != after.end() && found->first.first == before) {
        entered_[{stage, micro_batch}] =
            found->second.exact && found->first == std::pair(stage - 1, micro_batch);
        return form_of(found->second.text, mesh);
      }
    }
  }
  fail({.thing = "stages",
        .wrong = fmt::format("{} is planned before the stages that it gets hidden states from",
                             stages_.text(stage)),
        .advice = "plan the stages in order, with one StageStates"});
}

StepEnd StageMessages::end(const StepEnd& own) {
  const int last = stages_.count() - 1;
  const bool is_last = stages_.is_own(last);
  std::string text = text_of(own);
  if (on_meta_) {
    if (planned_ && is_last) {
      StageStates::Kind& kind = planned_->kinds[kind_];
      kind.end = text;
      kind.end_exact = std::ranges::all_of(entered_, [](const auto& one) { return one.second; });
    } else if (planned_ && !planned_->kinds[kind_].end.empty()) {
      text = planned_->kinds[kind_].end;
    }
    return end_of(text);
  }
  if (known_) {
    if (is_last) {
      check_as_before("how the step ends", now_.end, text);
    }
    return end_of(now_.end);
  }
  Row bytes = row_of(text);
  communicator_of(stages_).broadcast(bytes.data(), row, DType::u8, stages_.place_of(last));
  now_.end = bytes.data();
  told_[kind_] = now_;  // all of the axis have been told
  return end_of(now_.end);
}

}  // namespace tessera
