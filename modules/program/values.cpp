module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.tensor;
import :accesses;
import :analysis;
import :analysis_state;
import :shadow;
import :values;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

class Describer {
 public:
  Describer(const Program& program, const Analysis& known, ValueNames& names,
            std::span<const PlaceIndex> carries)
      : program_(program),
        shadow_(known.state().shadow),
        names_(names),
        carries_(carries),
        accesses_(known.state().accesses),
        contents_(shadow_.memories.size()),
        defined_(program.tensors.size(), false) {
    values_.is_written = ByMemory<bool>(shadow_.memories.size(), false);
    values_.changes = ByMemory<std::vector<Values::Change>>(shadow_.memories.size());
  }

  Values describe() {
    for (const auto& [name, input] : program_.inputs) {
      const MemoryIndex given = memory(input.tensor);
      contents_[given] = names_.of("input " + name);
      values_.changes[given].push_back({PlaceIndex(), contents_[given]});
      defined_[input.tensor] = true;
    }
    for (const Section& section : program_.sections) {
      for (const Instruction& i : section.instructions) {
        execute(i, accesses_[values_.calls.next()]);
        note_results(i);
      }
      std::map<std::string, ValueIndex>& left = values_.left.emplace_back();
      for (const auto& [name, input] : program_.inputs) {
        left["input " + name] = contents_[memory(input.tensor)];
      }
      for (const auto& [name, number] : program_.outputs) {
        if (defined_[number]) {  // its memory alone says nothing of a view
          left["output " + name] = names_.of(operand(number));
        }
      }
    }
    return std::move(values_);
  }

 private:
  MemoryIndex memory(TensorIndex number) const { return shadow_.memory(number); }

  std::string operand(TensorIndex number) const {
    return number.exists() ? fmt::format("{}:{}", contents_[memory(number)].number,
                                         view_in_words(shadow_.at(number)))
                           : "-";
  }

  /// What a copy was copied from.
  struct Original {
    std::string operand;
    Tensor view;
  };
  /// The original of a copy, then that one's own, and so on.
  using Originals = std::vector<Original>;

  /// Those of a tensor that is all of a copy; of any other, none.
  const Originals& originals_of(TensorIndex number) const {
    static const Originals none;
    const auto found = originals_.find(contents_[memory(number)]);
    const Tensor& x = shadow_.at(number);
    const bool is_copy = found != originals_.end() && x.is_contiguous() && x.offset() == 0 &&
                         x.shape() == found->second.front().view.shape() &&
                         x.dtype() == found->second.front().view.dtype();
    return is_copy ? found->second : none;
  }

  /// The operand of a call, which is the first of the originals from which on copies make no
  /// difference.
  std::string operand_of(const Instruction& i, TensorIndex number) const {
    if (!number.exists()) {
      return operand(number);
    }
    const Original* first = nullptr;
    for (const Original& original : originals_of(number)) {
      if (!is_same_of_copy(i, original.view, shadow_)) {
        break;
      }
      first = &original;
    }
    return first != nullptr ? first->operand : operand(number);
  }

  /// Without the numbers of operands and results.
  std::string what(const Instruction& i) const {
    std::string text;
    if (i.kind == Kind::call) {
      text = call_in_words(i);
    } else {
      text = i.kind == Kind::check  ? "check(" + i.guard
             : i.kind == Kind::full ? "full("
                                    : "values(";
      for (const double value : i.values) {
        text += fmt::format(" {}", value);
      }
    }
    for (const TensorIndex number : i.in) {
      text += fmt::format("; {}", operand_of(i, number));
    }
    for (const TensorIndex number : i.out) {
      text += "; " + (number.exists() ? view_in_words(shadow_.at(number)) : "-");
    }
    return text + ")";
  }

  void set(MemoryIndex memory, std::string description, bool made) {
    const PlaceIndex place = values_.calls.next();
    const bool in_flight = accesses_[place].completed.exists();
    contents_[memory] = names_.of(std::move(description));
    values_.changes[memory].push_back({place, in_flight ? ValueIndex() : contents_[memory]});
    if (!made) {
      values_.is_written[memory] = true;
    }
  }

  /// Whether it copies all of a memory to all of another one, byte by byte. Only the primitive by
  /// which the library copies itself is known to do that.
  bool copies_memory(const Instruction& i) const {
    if (i.kind != Kind::call || i.op != &copy_op_) {
      return false;
    }
    const Tensor& into = shadow_.at(i.in[0]);
    const Tensor& from = shadow_.at(i.in[1]);
    return into.dtype() == from.dtype() && into.shape() == from.shape() &&
           shadow_.is_all_of_memory(i.in[0]) && shadow_.is_all_of_memory(i.in[1]);
  }

  void set_contents(MemoryIndex memory, ValueIndex contents) {
    contents_[memory] = contents;
    values_.changes[memory].push_back({values_.calls.next(), contents});
  }

  void note_results(const Instruction& i) {
    for (const TensorIndex number : i.out) {
      if (number.exists()) {
        defined_[number] = true;
      }
    }
  }

  /// Whether it only waits for readers.
  static bool leaves_bytes(const Instruction& i) {
    return i.kind == Kind::call && i.op->communicates == Communicates::waits;
  }

  void execute(const Instruction& i, const Access& access) {
    ValueIndex call;
    if (std::ranges::binary_search(carries_, values_.calls.next())) {
      set_contents(memory(i.in[0]), contents_[memory(i.in[1])]);
    } else if (i.kind == Kind::empty || i.kind == Kind::restore || i.kind == Kind::release) {
      const MemoryIndex changed = memory(i.kind == Kind::empty ? i.out[0] : i.in[0]);
      set(changed, fmt::format("empty {}", shadow_.memories[changed].bytes), i.kind == Kind::empty);
    } else if (i.kind == Kind::call && i.op->completes) {
      for (const MemoryIndex completed : access.writes) {
        set(completed, fmt::format("complete {}", contents_[completed].number), false);
      }
    } else if (copies_memory(i)) {
      set_contents(access.writes[0], contents_[memory(i.in[1])]);
      values_.is_written[access.writes[0]] = true;
    } else if (i.kind == Kind::call && works_by_place(*i.op)) {
      execute_by_place(i, access);
    } else if (!access.writes.empty() || access.ordered) {
      call = names_.of(what(i));
      if (access.ordered) {
        values_.ordered.push_back(call);
        values_.ordered_places.push_back(values_.calls.next());
      }
      const bool made = i.kind != Kind::call || !i.op->in_place;
      if (copies_operand(i, access)) {
        Originals originals{{operand(i.in[0]), shadow_.at(i.in[0])}};
        std::ranges::copy(originals_of(i.in[0]), std::back_inserter(originals));
        set(access.writes[0], fmt::format("0 of {}", call.number), made);
        originals_.try_emplace(contents_[access.writes[0]], std::move(originals));
      } else {
        for (std::size_t k = 0; k < access.writes.size() && !leaves_bytes(i); ++k) {
          set(access.writes[k], fmt::format("{} of {}", k, call.number), made);
        }
      }
    }
    values_.calls.add(call);
  }

  void execute_by_place(const Instruction& i, const Access& access) {
    const std::string begin = call_in_words(i);
    const std::size_t count = i.in.size() / i.op->counts.lists;
    for (std::size_t k = 0; k < count; ++k) {
      std::string text = begin;
      for (std::size_t at = k; at < i.in.size(); at += count) {
        text += fmt::format("; {}", operand(i.in[at]));
      }
      const ValueIndex call = names_.of(text + ")");
      if (access.ordered) {
        values_.ordered.push_back(call);
        values_.ordered_places.push_back(values_.calls.next());
      }
      for (std::size_t list = 0; list < i.op->counts.lists; ++list) {
        const TensorIndex number = i.in[list * count + k];
        if (number.exists() && i.op->writes(list) && !leaves_bytes(i)) {
          set(memory(number), fmt::format("{} of {}", list, call.number), false);
        }
      }
    }
  }

  const Program& program_;
  const Shadow& shadow_;
  ValueNames& names_;
  std::span<const PlaceIndex> carries_;
  const ByPlace<Access>& accesses_;
  const Op& copy_op_ = find_op("copy_");
  ByMemory<ValueIndex> contents_;
  ByTensor<bool> defined_;                     // inputs, and what instructions so far have made
  std::map<ValueIndex, Originals> originals_;  // by the contents of copies
  Values values_;
};

}  // namespace

ValueIndex Values::contents_before(PlaceIndex place, MemoryIndex memory) const {
  const std::vector<Change>& all = changes[memory];
  const auto after = std::ranges::lower_bound(all, place, {}, &Change::place);
  return after == all.begin() ? ValueIndex() : std::prev(after)->contents;
}

ValueIndex ValueNames::of(std::string text) {
  return names_.try_emplace(std::move(text), static_cast<int>(names_.size())).first->second;
}

std::string view_in_words(const Tensor& x) {
  return fmt::format("{}{}{}+{}", name_of(x.dtype()), to_string(x.shape()), to_string(x.strides()),
                     x.offset());
}

Values values_of(const Program& program, const Analysis& known, ValueNames& names,
                 std::span<const PlaceIndex> carries) {
  return Describer(program, known, names, carries).describe();
}

}  // namespace tessera::graph
