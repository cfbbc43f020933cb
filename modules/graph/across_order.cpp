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
class CarriedMemories {
 public:
  explicit CarriedMemories(SplitStep& step)
      : step_(step),
        shadow_(step.known.state().shadow),
        accesses_(step.known.state().accesses),
        places_(places_of(step.program)),
        made_at_(shadow_.memories.size()),
        written_at_(made_at_),
        changed_(made_at_.size(), false),
        anew_(made_at_.size()) {
    step_.input_of = ByMemory<TensorIndex>(made_at_.size());
    for (const auto& [name, input] : step_.program.inputs) {
      (is_given_anew(input.role) ? anew_ : step_.input_of)[memory(input.tensor)] = input.tensor;
    }
    step_.made_by_update = ByTensor<bool>(step_.program.tensors.size(), false);
    for (const PlaceIndex place : places_.keys()) {
      look_at(place);
    }
  }

  std::string find() {
    for (const auto& [name, number] : step_.program.outputs) {
      if (step_.made_by_update[number]) {
        return fmt::format("it computes the output '{}'", name);
      }
    }
    std::string why;
    for (PlaceIndex place = step_.update; place < shadow_.end() && why.empty(); ++place) {
      why = why_not(place);
    }
    for (PlaceIndex place = step_.update; place < shadow_.end() && why.empty(); ++place) {
      for (const TensorIndex number : places_[place]->in) {
        if (number.exists() && !step_.made_by_update[number] && why.empty()) {
          why = cross(number);
        }
      }
    }
    return why;
  }

 private:
  MemoryIndex memory(TensorIndex number) const { return shadow_.memory(number); }

  void look_at(PlaceIndex place) {
    const Instruction& i = *places_[place];
    if (changes_memory(i)) {
      changed_[memory(i.in[0])] = true;
    }
    for (const TensorIndex number : i.out) {
      if (number.exists() && place >= step_.update) {
        step_.made_by_update[number] = true;
      }
      if (number.exists() && !made_at_[memory(number)].exists()) {
        made_at_[memory(number)] = place;
      }
    }
    for (const MemoryIndex written : accesses_[place].writes) {
      if (place < step_.update) {
        written_at_[written] = place;
      }
    }
  }

  /// Reason why a place cannot be made in another step.
  std::string why_not(PlaceIndex place) const {
    const Instruction& i = *places_[place];
    const Access& access = accesses_[place];
    const std::string where = place_in_words(step_.program, place);
    if (access.issued.exists() && access.issued < step_.update) {
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
      for (const TensorIndex number : operands_left_to_readers(i)) {
        if (!lasts(number)) {
          return where + " leaves memory to other ranks that was made before";
        }
      }
    }
    const bool writes_anew = std::ranges::any_of(
        access.writes, [&](MemoryIndex written) { return anew_[written].exists(); });
    return writes_anew ? where + " writes a tensor that is another one in the next step"
                       : std::string();
  }

  /// Whether its memory is made by the update, or is there in each step.
  bool lasts(TensorIndex number) const {
    return step_.input_of[memory(number)].exists() || made_at_[memory(number)] >= step_.update;
  }

  std::string cross(TensorIndex number) {
    const MemoryIndex used = memory(number);
    if (step_.input_of[used].exists() || !crossed_.insert(used).second) {
      return "";
    }
    CarriedMemory crossing{.memory = used};
    const bool is_given = anew_[used].exists();
    const Instruction* const made = is_given ? nullptr : places_[made_at_[used]];
    if (is_given) {
      crossing.base = anew_[used];
    } else {
      crossing.base =
          *std::ranges::find_if(made->out, [&](TensorIndex out) { return memory(out) == used; });
    }
    if (!is_given && made->kind == Kind::empty && !changed_[used] &&
        !step_.known.is_shared(crossing.memory)) {
      crossing.made_at = made_at_[used];
    } else {
      if (!shadow_.is_all_of_memory(crossing.base)) {
        return to_text(crossing.base) + " does not have all of its memory";
      }
      crossing.carry_at = std::max(PlaceIndex(0), written_at_[used]);
    }
    step_.crossings.push_back(crossing);
    return "";
  }

  SplitStep& step_;
  const Shadow& shadow_;
  const ByPlace<Access>& accesses_;
  ByPlace<const Instruction*> places_;
  ByMemory<PlaceIndex> made_at_;
  ByMemory<PlaceIndex> written_at_;  // the last place before the update
  ByMemory<bool> changed_;           // released or restored
  ByMemory<TensorIndex> anew_;       // the input that is another one in each step
  std::set<MemoryIndex> crossed_;
};

/// Before which place of the next step, and in which order. The smaller one is the earlier one.
struct Key {
  PlaceIndex position;
  PlaceIndex first_use;

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
      kept[m] = step_.input_of[m].exists();
    }
    for (const CarriedMemory& crossing : step_.crossings) {
      kept[crossing.memory] = crossing.made_at.exists();
    }
    for (PlaceIndex place = end_ - 1; place.exists(); --place) {  // the first one remains
      const Access& access = accesses_[place];
      const Key key{communicates(access) ? PlaceIndex(0) : place, place};
      for (const MemoryIndex memory : access.reads) {
        read_[memory] = kept[memory] ? key : none_;
      }
      for (const MemoryIndex memory : access.writes) {
        written_[memory] = kept[memory] ? key : none_;
      }
      ordered_ = communicates(access) ? key : ordered_;
    }
    for (const CarriedMemory& crossing : step_.crossings) {
      if (crossing.carry_at.exists() && crossing.carry_at < end_) {
        written_[crossing.memory] = {crossing.carry_at, crossing.carry_at};
      }
    }
  }

  static bool communicates(const Access& access) {
    return access.ordered || access.issued.exists() || access.completed.exists();
  }

  /// Adds an instruction, after all that come later in the update.
  void add(const Instruction& i, std::size_t at, std::vector<UpdateCall>& all) {
    const Access& access = accesses_[step_.update + static_cast<int>(at)];
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
    struct ListElement {
      std::vector<TensorIndex> in;
      std::vector<MemoryIndex> reads;
      std::vector<MemoryIndex> writes;
    };
    const std::size_t count = i.in.size() / i.op->counts.lists;
    std::vector<ListElement> places(count);
    std::vector<Key> keys(count, none_);
    for (std::size_t k = 0; k < count; ++k) {
      for (std::size_t list = 0; list < i.op->counts.lists; ++list) {
        const TensorIndex number = i.in[list * count + k];
        if (number.exists()) {
          places[k].in.push_back(number);
          (i.op->writes(list) ? places[k].writes : places[k].reads)
              .push_back(shadow_.memory(number));
        }
      }
      limit(keys[k], i, places[k].reads, places[k].writes);
    }
    std::map<std::pair<PlaceIndex, PlaceIndex>, UpdateCall> made;
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
    for (const TensorIndex number : i.out) {
      if (number.exists()) {
        key.limit(number_used_[number]);
      }
    }
  }

  /// Notes an instruction that comes before it in the update and meets it: it must not be made
  /// later.
  void note(const Key& key, const std::vector<TensorIndex>& in,
            const std::vector<MemoryIndex>& reads, const std::vector<MemoryIndex>& writes) {
    for (const TensorIndex number : in) {
      if (number.exists()) {
        number_used_[number].limit(key);
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
  const ByPlace<Access>& accesses_;
  PlaceIndex end_;
  Key none_;                     // nothing limits it: the end of the section
  ByMemory<Key> read_;           // in the next step
  ByMemory<Key> written_;        // in the next step
  ByTensor<Key> number_used_;    // later in the update
  ByMemory<Key> read_later_;     // later in the update
  ByMemory<Key> written_later_;  // later in the update
  Key ordered_;                  // the first communication of the next step
  Key ordered_later_;            // that of the update, later
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
  step.update =
      known.state().shadow.end() - static_cast<int>(program.sections.back().instructions.size());
  step.refusal = CarriedMemories(step).find();
  return step;
}

std::vector<UpdateCall> update_calls(const SplitStep& step) { return Order(step).calls(); }

}  // namespace tessera::graph
