module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
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

/// The bytes of a description: what it is of, and then its parts in their order. Descriptions are
/// compared and never shown, and there are many of them: no text is made.
class Description {
 public:
  enum class Kind : char { input, view, empty, complete, result, other };

  explicit Description(Kind kind, std::string_view text = {}) : bytes_(1, static_cast<char>(kind)) {
    bytes_ += text;
    bytes_ += '\0';
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  Description& add(const T& part) {
    bytes_.append(reinterpret_cast<const char*>(&part), sizeof(T));
    return *this;
  }
  std::string bytes() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// What a call reads: a memory's contents, and where in it; none of an operand that is absent.
struct Operand {
  ValueIndex contents;
  ValueIndex view;
};

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
        known_originals_(shadow_.memories.size()),
        views_(program.tensors.size()),
        defined_(program.tensors.size(), false) {
    values_.is_written = ByMemory<bool>(shadow_.memories.size(), false);
    values_.changes = ByMemory<std::vector<Values::Change>>(shadow_.memories.size());
  }

  Values describe() {
    for (const auto& [name, input] : program_.inputs) {
      const MemoryIndex given = memory(input.tensor);
      note_contents(given, index_of(Description(Description::Kind::input, name)));
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
        left.emplace_hint(left.end(), "input " + name, contents_[memory(input.tensor)]);
      }
      for (const auto& [name, number] : program_.outputs) {
        if (defined_[number]) {  // its memory alone says nothing of a view
          left["output " + name] = index_of(description(operand(number)));
        }
      }
    }
    return std::move(values_);
  }

 private:
  MemoryIndex memory(TensorIndex number) const { return shadow_.memory(number); }

  ValueIndex index_of(Description&& description) {
    return names_.of(std::move(description).bytes());
  }

  static Description description(const Operand& operand) {
    Description all(Description::Kind::other);
    all.add(operand);
    return all;
  }

  /// Type, shape, strides and place of a tensor in its memory.
  ValueIndex view(TensorIndex number) {
    if (!number.exists()) {
      return {};
    }
    ValueIndex& known = views_[number];
    if (!known.exists()) {
      const Tensor& x = shadow_.at(number);
      Description text(Description::Kind::view);
      text.add(x.dtype()).add(x.offset());
      for (int dim = 0; dim < x.shape().size(); ++dim) {
        text.add(x.shape()[dim]).add(x.strides()[dim]);
      }
      known = index_of(std::move(text));
    }
    return known;
  }

  Operand operand(TensorIndex number) {
    return number.exists() ? Operand{contents_[memory(number)], view(number)} : Operand{};
  }

  /// What a copy was copied from.
  struct CopySource {
    Operand operand;
    Tensor view;
  };
  /// The original of a copy, then that one's own, and so on.
  using CopySources = std::vector<CopySource>;

  /// Those of a tensor that is all of a copy; of any other, none.
  const CopySources& originals_of(TensorIndex number) const {
    static const CopySources none;
    const CopySources* const known = known_originals_[memory(number)];
    if (known == nullptr) {
      return none;
    }
    const Tensor& x = shadow_.at(number);
    const Tensor& copied = known->front().view;
    const bool is_copy = x.is_contiguous() && x.offset() == 0 && x.shape() == copied.shape() &&
                         x.dtype() == copied.dtype();
    return is_copy ? *known : none;
  }

  /// The operand of a call, which is the first of the originals from which on copies make no
  /// difference.
  Operand operand_of(const Instruction& i, TensorIndex number) {
    if (!number.exists()) {
      return operand(number);
    }
    const CopySource* first = nullptr;
    for (const CopySource& original : originals_of(number)) {
      if (!is_same_of_copy(i, original.view, shadow_)) {
        break;
      }
      first = &original;
    }
    return first != nullptr ? first->operand : operand(number);
  }

  /// Without the numbers of operands and results.
  Description described(const Instruction& i) {
    const std::string words = i.kind == Kind::call    ? call_in_words(i)
                              : i.kind == Kind::check ? "check " + i.guard
                              : i.kind == Kind::full  ? "full"
                                                      : "values";
    Description all(Description::Kind::other, words);
    if (i.kind != Kind::call) {
      all.add(i.values.size());
      for (const double value : i.values) {
        all.add(value);
      }
    }
    for (const TensorIndex number : i.in) {
      all.add(operand_of(i, number));
    }
    for (const TensorIndex number : i.out) {
      all.add(view(number));
    }
    return all;
  }

  void note_contents(MemoryIndex memory, ValueIndex contents) {
    const auto copied = originals_.find(contents);
    contents_[memory] = contents;
    known_originals_[memory] = copied == originals_.end() ? nullptr : &copied->second;
  }

  void set(MemoryIndex memory, Description&& description, bool made) {
    const PlaceIndex place = values_.calls.next();
    const bool in_flight = accesses_[place].completed.exists();
    note_contents(memory, index_of(std::move(description)));
    values_.changes[memory].push_back({place, in_flight ? ValueIndex() : contents_[memory]});
    if (!made) {
      values_.is_written[memory] = true;
    }
  }

  static Description result(std::size_t number, ValueIndex call) {
    Description all(Description::Kind::result);
    all.add(number).add(call);
    return all;
  }

  void set_contents(MemoryIndex memory, ValueIndex contents) {
    note_contents(memory, contents);
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
      Description empty(Description::Kind::empty);
      empty.add(shadow_.memories[changed].bytes);
      set(changed, std::move(empty), i.kind == Kind::empty);
    } else if (i.kind == Kind::call && i.op->completes) {
      for (const MemoryIndex completed : access.writes) {
        Description complete(Description::Kind::complete);
        complete.add(contents_[completed]);
        set(completed, std::move(complete), false);
      }
    } else if (copies_memory(i, shadow_)) {
      set_contents(access.writes[0], contents_[memory(i.in[1])]);
      values_.is_written[access.writes[0]] = true;
    } else if (i.kind == Kind::call && works_by_place(*i.op)) {
      execute_by_place(i, access);
    } else if (!access.writes.empty() || access.ordered) {
      call = index_of(described(i));
      if (access.ordered) {
        values_.ordered.push_back(call);
        values_.ordered_places.push_back(values_.calls.next());
      }
      const bool made = i.kind != Kind::call || !i.op->in_place;
      if (copies_operand(i, access) && shadow_.is_all_of_memory(i.in[0])) {
        set_contents(access.writes[0], contents_[memory(i.in[0])]);
      } else if (copies_operand(i, access)) {
        CopySources originals{{operand(i.in[0]), shadow_.at(i.in[0])}};
        std::ranges::copy(originals_of(i.in[0]), std::back_inserter(originals));
        set(access.writes[0], result(0, call), made);
        const ValueIndex copy = contents_[access.writes[0]];
        originals_.try_emplace(copy, std::move(originals));
        note_contents(access.writes[0], copy);
      } else {
        for (std::size_t k = 0; k < access.writes.size() && !leaves_bytes(i); ++k) {
          set(access.writes[k], result(k, call), made);
        }
      }
    }
    values_.calls.add(call);
  }

  void execute_by_place(const Instruction& i, const Access& access) {
    const std::string begin = call_in_words(i);
    const std::size_t count = i.in.size() / i.op->counts.lists;
    for (std::size_t k = 0; k < count; ++k) {
      Description place(Description::Kind::other, begin);
      for (std::size_t at = k; at < i.in.size(); at += count) {
        place.add(operand_of(i, i.in[at]));
      }
      const ValueIndex call = index_of(std::move(place));
      if (access.ordered) {
        values_.ordered.push_back(call);
        values_.ordered_places.push_back(values_.calls.next());
      }
      for (std::size_t list = 0; list < i.op->counts.lists; ++list) {
        const TensorIndex number = i.in[list * count + k];
        if (number.exists() && i.op->writes(list) && !leaves_bytes(i)) {
          set(memory(number), result(list, call), false);
        }
      }
    }
  }

  const Program& program_;
  const Shadow& shadow_;
  ValueNames& names_;
  std::span<const PlaceIndex> carries_;
  const ByPlace<Access>& accesses_;
  ByMemory<ValueIndex> contents_;
  ByMemory<const CopySources*> known_originals_;  // of the contents; null: they are no copy
  ByTensor<ValueIndex> views_;                    // as far as they were asked for
  ByTensor<bool> defined_;                        // inputs, and what instructions so far have made
  std::map<ValueIndex, CopySources> originals_;   // by the contents of copies
  Values values_;
};

}  // namespace

ValueIndex Values::contents_before(PlaceIndex place, MemoryIndex memory) const {
  const std::vector<Change>& all = changes[memory];
  const auto after = std::ranges::lower_bound(all, place, {}, &Change::place);
  return after == all.begin() ? ValueIndex() : std::prev(after)->contents;
}

ValueIndex ValueNames::of(std::string description) {
  const std::uint64_t hash = std::hash<std::string>()(description);
  return names_.try_emplace({hash, std::move(description)}, static_cast<int>(names_.size()))
      .first->second;
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
