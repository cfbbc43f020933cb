// Uses of a step's update, and where the next step makes it.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :across_parts;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

bool changes_memory(const Instruction& i) {
  return i.kind == Kind::release || i.kind == Kind::restore;
}

/// Finds what crosses, or why it cannot.
class Crossings {
 public:
  explicit Crossings(SplitStep& step)
      : step_(step),
        shadow_(step.known.state().shadow),
        accesses_(step.known.state().accesses),
        places_(places_of(step.program)),
        made_at_(shadow_.memories.size(), -1),
        written_at_(made_at_),
        changed_(made_at_.size(), false),
        anew_(made_at_) {
    step_.input_of = ByMemory<int>(made_at_.size(), -1);
    for (const auto& [name, input] : step_.program.inputs) {
      (is_given_anew(input.role) ? anew_ : step_.input_of)[memory(input.number)] = input.number;
    }
    step_.made_by_update.assign(step_.program.tensors.size(), false);
    for (int place = 0; place < static_cast<int>(places_.size()); ++place) {
      look_at(place);
    }
  }

  std::string find() {
    for (const auto& [name, number] : step_.program.outputs) {
      if (step_.made_by_update[index(number)]) {
        return fmt::format("it computes the output '{}'", name);
      }
    }
    std::string why;
    for (int place = step_.update; place < shadow_.places && why.empty(); ++place) {
      why = why_not(place);
    }
    for (int place = step_.update; place < shadow_.places && why.empty(); ++place) {
      for (const int number : places_[index(place)]->in) {
        if (number >= 0 && !step_.made_by_update[index(number)] && why.empty()) {
          why = cross(number);
        }
      }
    }
    return why;
  }

 private:
  MemoryIndex memory(int number) const { return shadow_.memory(number); }

  void look_at(int place) {
    const Instruction& i = *places_[index(place)];
    if (changes_memory(i)) {
      changed_[memory(i.in[0])] = true;
    }
    for (const int number : i.out) {
      if (number >= 0 && place >= step_.update) {
        step_.made_by_update[index(number)] = true;
      }
      if (number >= 0 && made_at_[memory(number)] < 0) {
        made_at_[memory(number)] = place;
      }
    }
    for (const MemoryIndex written : accesses_[index(place)].writes) {
      if (place < step_.update) {
        written_at_[written] = place;
      }
    }
  }

  /// Reason why a place cannot be made in another step.
  std::string why_not(int place) const {
    const Instruction& i = *places_[index(place)];
    const Access& access = accesses_[index(place)];
    const std::string where = place_in_words(step_.program, place);
    if (access.issued >= 0 && access.issued < step_.update) {
      return where + " waits for what was issued before";
    }
    for (const Binding& b : i.bindings) {
      if (!b.stream.empty()) {
        return where + " takes random numbers";
      }
    }
    if (changes_memory(i) && !lasts(i.in[0])) {
      return where + " frees memory that was made before";
    }
    if (i.kind == Kind::call && i.op->communicates != Communicates::none) {
      for (const int number : operands_left_to_readers(i)) {
        if (!lasts(number)) {
          return where + " leaves memory to other ranks that was made before";
        }
      }
    }
    const bool writes_anew = std::ranges::any_of(
        access.writes, [&](MemoryIndex written) { return anew_[written] >= 0; });
    return writes_anew ? where + " writes a tensor that is another one in the next step"
                       : std::string();
  }

  /// Whether its memory is made by the update, or is there in each step.
  bool lasts(int number) const {
    return step_.input_of[memory(number)] >= 0 || made_at_[memory(number)] >= step_.update;
  }

  std::string cross(int number) {
    const MemoryIndex used = memory(number);
    if (step_.input_of[used] >= 0 || !crossed_.insert(used).second) {
      return "";
    }
    Crossing crossing{.memory = used};
    const bool is_given = anew_[used] >= 0;
    const Instruction* const made = is_given ? nullptr : places_[index(made_at_[used])];
    if (is_given) {
      crossing.base = anew_[used];
    } else {
      crossing.base = *std::ranges::find_if(
          made->out, [&](int out) { return out >= 0 && memory(out) == used; });
    }
    if (!is_given && made->kind == Kind::empty && !changed_[used] &&
        !step_.known.is_shared(crossing.memory)) {
      crossing.made_at = made_at_[used];
    } else {
      const Tensor& base = shadow_.tensors[index(crossing.base)];
      const bool is_all = base.is_contiguous() && base.offset() == 0 &&
                          base.numel() * static_cast<std::int64_t>(size_of(base.dtype())) ==
                              step_.known.bytes_of(crossing.memory);
      if (!is_all) {
        return fmt::format("%{} does not have all of its memory", crossing.base);
      }
      crossing.carry_at = std::max(0, written_at_[used]);
    }
    step_.crossings.push_back(crossing);
    return "";
  }

  SplitStep& step_;
  const Shadow& shadow_;
  const std::vector<Access>& accesses_;
  std::vector<const Instruction*> places_;
  ByMemory<int> made_at_;
  ByMemory<int> written_at_;  // the last place before the update
  ByMemory<bool> changed_;    // released or restored
  ByMemory<int> anew_;        // the input that is another one in each step
  std::set<MemoryIndex> crossed_;
};

/// Before which place of the next step, and in which order. The smaller one is the earlier one.
struct Key {
  int position = 0;
  int first_use = 0;

  void limit(const Key& other) {
    position = std::min(position, other.position);
    first_use = std::min(first_use, other.first_use);
  }
  bool operator==(const Key&) const = default;
};

class Order {
 public:
  explicit Order(const SplitStep& step)
      : step_(step),
        shadow_(step.known.state().shadow),
        accesses_(step.known.state().accesses),
        end_(static_cast<int>(step.program.sections.front().instructions.size())),
        none_{end_, end_},
        read_(shadow_.memories.size(), none_),
        written_(read_),
        number_used_(step.program.tensors.size(), none_),
        read_later_(read_),
        written_later_(read_),
        ordered_(none_),
        ordered_later_(none_) {
    look_at_next_step();
  }

  std::vector<UpdateCall> calls() {
    const std::vector<Instruction>& update = step_.program.sections.back().instructions;
    std::vector<UpdateCall> all;
    for (std::size_t at = update.size(); at-- > 0;) {
      add(update[at], at, all);
    }
    std::ranges::sort(all, {}, [](const UpdateCall& call) {
      return std::tuple(call.position, call.first_use, call.instruction);
    });
    return all;
  }

 private:
  /// Finds, by memory that the update may touch, where the next step first uses it.
  void look_at_next_step() {
    ByMemory<bool> kept(shadow_.memories.size());
    for (const MemoryIndex m : kept.keys()) {
      kept[m] = step_.input_of[m] >= 0;
    }
    for (const Crossing& crossing : step_.crossings) {
      kept[crossing.memory] = crossing.made_at >= 0;
    }
    for (int place = end_; place-- > 0;) {  // the first one remains
      const Access& access = accesses_[index(place)];
      const Key key{communicates(access) ? 0 : place, place};
      for (const MemoryIndex memory : access.reads) {
        read_[memory] = kept[memory] ? key : none_;
      }
      for (const MemoryIndex memory : access.writes) {
        written_[memory] = kept[memory] ? key : none_;
      }
      ordered_ = communicates(access) ? key : ordered_;
    }
    for (const Crossing& crossing : step_.crossings) {
      if (crossing.carry_at >= 0 && crossing.carry_at < end_) {
        written_[crossing.memory] = {crossing.carry_at, crossing.carry_at};
      }
    }
  }

  static bool communicates(const Access& access) {
    return access.ordered || access.issued >= 0 || access.completed >= 0;
  }

  /// Adds an instruction, after all that come later in the update.
  void add(const Instruction& i, std::size_t at, std::vector<UpdateCall>& all) {
    const Access& access = accesses_[index(step_.update) + at];
    if (i.kind == Kind::call && works_by_place(*i.op) && !communicates(access)) {
      add_places(i, at, all);
      return;
    }
    Key key = none_;
    limit(key, i, access.reads, access.writes);
    if (communicates(access)) {
      key.limit(ordered_);
      key.limit(ordered_later_);
      ordered_later_.limit(key);
    }
    note(key, i.in, access.reads, access.writes);
    all.push_back({at, {}, key.position, key.first_use});
  }

  /// The places of lists that are made at one time remain one call.
  void add_places(const Instruction& i, std::size_t at, std::vector<UpdateCall>& all) {
    struct Place {
      std::vector<int> in;
      std::vector<MemoryIndex> reads;
      std::vector<MemoryIndex> writes;
    };
    const std::size_t count = i.in.size() / i.op->counts.lists;
    std::vector<Place> places(count);
    std::vector<Key> keys(count, none_);
    for (std::size_t k = 0; k < count; ++k) {
      for (std::size_t list = 0; list < i.op->counts.lists; ++list) {
        const int number = i.in[list * count + k];
        if (number >= 0) {
          places[k].in.push_back(number);
          (i.op->writes(list) ? places[k].writes : places[k].reads)
              .push_back(shadow_.memory(number));
        }
      }
      limit(keys[k], i, places[k].reads, places[k].writes);
    }
    std::map<std::pair<int, int>, UpdateCall> made;
    for (std::size_t k = 0; k < count; ++k) {
      note(keys[k], places[k].in, places[k].reads, places[k].writes);
      UpdateCall& call = made[{keys[k].position, keys[k].first_use}];
      call.instruction = at;
      call.position = keys[k].position;
      call.first_use = keys[k].first_use;
      call.places.push_back(k);
    }
    for (auto& [key, call] : made) {
      all.push_back(std::move(call));
    }
  }

  void limit(Key& key, const Instruction& i, const std::vector<MemoryIndex>& reads,
             const std::vector<MemoryIndex>& writes) const {
    for (const MemoryIndex memory : reads) {
      key.limit(written_[memory]);
      key.limit(written_later_[memory]);
    }
    for (const MemoryIndex memory : writes) {
      key.limit(written_[memory]);
      key.limit(read_[memory]);
      key.limit(written_later_[memory]);
      key.limit(read_later_[memory]);
    }
    for (const int number : i.out) {
      if (number >= 0) {
        key.limit(number_used_[index(number)]);
      }
    }
  }

  /// Notes an instruction that comes before it in the update and meets it: it must not be made
  /// later.
  void note(const Key& key, const std::vector<int>& in, const std::vector<MemoryIndex>& reads,
            const std::vector<MemoryIndex>& writes) {
    for (const int number : in) {
      if (number >= 0) {
        number_used_[index(number)].limit(key);
      }
    }
    for (const MemoryIndex memory : reads) {
      read_later_[memory].limit(key);
    }
    for (const MemoryIndex memory : writes) {
      written_later_[memory].limit(key);
    }
  }

  const SplitStep& step_;
  const Shadow& shadow_;
  const std::vector<Access>& accesses_;
  int end_;
  Key none_;                      // nothing limits it: the end of the section
  ByMemory<Key> read_;            // in the next step
  ByMemory<Key> written_;         // in the next step
  std::vector<Key> number_used_;  // by number: later in the update
  ByMemory<Key> read_later_;      // later in the update
  ByMemory<Key> written_later_;   // later in the update
  Key ordered_;                   // the first communication of the next step
  Key ordered_later_;             // that of the update, later
};

}  // namespace

SplitStep split_step_of(const Program& program, const Analysis& known) {
  SplitStep step{.program = program, .known = known};
  if (program.sections.size() < 2 || program.sections.back().kind != SectionKind::update ||
      program.sections.back().instructions.empty()) {
    step.refusal = "it has no update of its own";
    return step;
  }
  for (const Instruction* const i : places_of(program)) {
    if (i->is_guard()) {
      step.refusal = "a guard may give the step up, which must not have updated anything then";
      return step;
    }
  }
  step.update = known.places() - static_cast<int>(program.sections.back().instructions.size());
  step.refusal = Crossings(step).find();
  return step;
}

std::vector<UpdateCall> update_calls(const SplitStep& step) { return Order(step).calls(); }

}  // namespace tessera::graph
