// Passes over calls of lists, such as all_reduce_coalesced_ and adamw_: what such a call writes at
// a place of its lists follows from what is at the same place alone (graph::works_by_place), so
// lists may be cut and joined. The sums of a collective keep their order, that of the ranks.
//   buckets      joins neighbouring reductions of one kind, type and group, up to bucket_bytes
//   split_lists  cuts calls that do not communicate into one for each place
//   join_lists   joins such calls again
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.calls;
import tessera.tensor;
import tessera.program;
import tessera.passes;

namespace {

using namespace tessera;
using graph::Analysis;

/// Beyond this, the time of a call is nothing beside that of its data.
constexpr std::int64_t bucket_bytes = std::int64_t{16} << 20;

bool is_list_call(const Instruction& i) {
  return i.kind == Instruction::Kind::call && graph::works_by_place(*i.op);
}

std::size_t places_in(const Instruction& i) { return i.in.size() / i.op->counts.lists; }

/// The operands of some places of a call.
Instruction part_of(const Instruction& i, std::size_t place) {
  Instruction part = i;
  part.in.clear();
  for (std::size_t at = place; at < i.in.size(); at += places_in(i)) {
    part.in.push_back(i.in[at]);
  }
  return part;
}

void split_lists(Program& program, const Analysis& /*known*/) {
  for (Section& section : program.sections) {
    for (Instruction& i : std::exchange(section.instructions, {})) {
      if (!is_list_call(i) || i.op->communicates != Communicates::none || places_in(i) < 2) {
        section.instructions.push_back(std::move(i));
        continue;
      }
      for (std::size_t place = 0; place < places_in(i); ++place) {
        section.instructions.push_back(part_of(i, place));
      }
    }
  }
}

/// An `identity` of several calls, which ranks compare as they did those of each.
Attributes with_identities(const Attributes& all, const Instruction& more) {
  const ArgumentsInfo* const info = more.op->arguments;
  if (info == nullptr) {
    return all;
  }
  std::vector<ArgumentValue> values = info->values(all);
  const std::vector<ArgumentValue> others = info->values(more.attributes);
  for (std::size_t k = 0; k < values.size(); ++k) {
    if (info->fields[k].name == "identity") {
      values[k] = static_cast<std::int64_t>(
          hash_combine(static_cast<std::uint64_t>(std::get<std::int64_t>(values[k])),
                       static_cast<std::uint64_t>(std::get<std::int64_t>(others[k]))));
    }
  }
  return info->from_values(values);
}

/// Which calls may be joined, and what they may pass.
struct Policy {
  std::function<bool(const Instruction& i)> takes;
  /// Whether calls stay where they are because of what is between them.
  std::function<bool(const Analysis& known, PlaceIndex place)> ends;
  std::int64_t most_bytes = 0;
};

class Joiner {
 public:
  Joiner(Program& program, const Analysis& known, Policy policy)
      : program_(program), known_(known), policy_(std::move(policy)), replacement_(program) {
    for (Section& section : program.sections) {
      for (Instruction& i : section.instructions) {
        places_.add(&i);
      }
    }
  }

  void join() {
    PlaceIndex place(0);
    for (const Section& section : program_.sections) {
      for (std::size_t k = 0; k < section.instructions.size(); ++k, ++place) {
        visit(place);
      }
      close();
    }
    replacement_.apply(program_);
  }

 private:
  Instruction& at(PlaceIndex place) const { return *places_[place]; }

  void visit(PlaceIndex place) {
    const Instruction& i = at(place);
    if (!is_list_call(i) || !policy_.takes(i)) {
      if (!open_.empty() && (policy_.ends(known_, place) || must_follow(place))) {
        close();
      }
      return;
    }
    const std::string key = key_of(i);
    if (key != key_ || bytes_ + bytes_of(i) > policy_.most_bytes || shares_memory(place)) {
      close();
    }
    key_ = key;
    bytes_ += bytes_of(i);
    open_.push_back(place);
  }

  /// Equal texts: one call may have the operands of both.
  std::string key_of(const Instruction& i) const {
    std::string key = graph::call_in_words(i);
    for (std::size_t at = 0; at < i.in.size(); at += places_in(i)) {
      key += i.in[at].exists() ? " " + std::string(name_of(tensor(i.in[at]).dtype)) : " -";
    }
    return key;
  }

  const ProgramTensor& tensor(TensorIndex operand) const { return program_.tensors[operand]; }

  /// Of the larger operand at each place: the whole and not the shard, which may differ by rank.
  std::int64_t bytes_of(const Instruction& i) const {
    std::int64_t bytes = 0;
    for (std::size_t place = 0; place < places_in(i); ++place) {
      std::int64_t elements = -1;
      std::int64_t largest = 0;
      for (const TensorIndex operand : part_of(i, place).in) {
        if (operand.exists() && tensor(operand).shape.product() > elements) {
          elements = tensor(operand).shape.product();
          largest = elements * static_cast<std::int64_t>(size_of(tensor(operand).dtype));
        }
      }
      bytes += largest;
    }
    return bytes;
  }

  /// Whether an instruction must stay between the open calls and what follows it.
  bool must_follow(PlaceIndex place) const {
    return std::ranges::any_of(open_,
                               [&](PlaceIndex call) { return known_.conflict(call, place); });
  }

  static bool meet(std::span<const MemoryIndex> some, std::span<const MemoryIndex> others) {
    return std::ranges::any_of(some, [&](MemoryIndex memory) {
      return std::ranges::find(others, memory) != others.end();
    });
  }

  bool shares_memory(PlaceIndex place) const {
    return std::ranges::any_of(open_, [&](PlaceIndex call) {
      return meet(known_.writes(call), known_.writes(place)) ||
             meet(known_.writes(call), known_.reads(place)) ||
             meet(known_.reads(call), known_.writes(place));
    });
  }

  /// The open calls become one, at the place of the last of them.
  void close() {
    if (open_.size() > 1) {
      Instruction joined = at(open_.back());
      joined.attributes = at(open_.front()).attributes;
      joined.in.clear();
      for (std::size_t list = 0; list < joined.op->counts.lists; ++list) {
        for (const PlaceIndex place : open_) {
          const std::vector<TensorIndex>& in = at(place).in;
          const auto count = static_cast<std::ptrdiff_t>(places_in(at(place)));
          const auto begin = in.begin() + static_cast<std::ptrdiff_t>(list) * count;
          joined.in.insert(joined.in.end(), begin, begin + count);
        }
      }
      for (const PlaceIndex place : std::span(open_).subspan(1)) {
        joined.attributes = with_identities(joined.attributes, at(place));
      }
      join_waits(joined.in[0]);
      for (const PlaceIndex place : std::span(open_).first(open_.size() - 1)) {
        replacement_.remove(place);
      }
      at(open_.back()) = std::move(joined);
    }
    open_.clear();
    key_.clear();
    bytes_ = 0;
  }

  /// The first of the waits completes all.
  void join_waits(TensorIndex first) {
    std::vector<PlaceIndex> waits;
    for (const PlaceIndex place : open_) {
      if (known_.partner(place).exists()) {
        waits.push_back(known_.partner(place));
      }
    }
    std::ranges::sort(waits);
    for (std::size_t k = 0; k < waits.size(); ++k) {
      if (k > 0) {
        replacement_.remove(waits[k]);
      } else {
        at(waits[k]).in = {first};
      }
    }
  }

  Program& program_;
  const Analysis& known_;
  Policy policy_;
  ByPlace<Instruction*> places_;
  graph::Replacement replacement_;
  std::vector<PlaceIndex> open_;  // calls that become one, at the last of them
  std::string key_;
  std::int64_t bytes_ = 0;
};

/// Reductions whose tensors may be of any memories. Nothing that communicates is between them, and
/// each is waited for after the last one is issued.
void make_buckets(Program& program, const Analysis& known) {
  const auto takes = [](const Instruction& i) {
    return i.op->issues && (i.op->communicates == collective::CallKind::all_reduce ||
                            i.op->communicates == collective::CallKind::reduce_scatter);
  };
  const auto ends = [](const Analysis&, PlaceIndex) { return false; };
  Joiner(program, known, {takes, ends, bucket_bytes}).join();
}

/// Only views may be between them, so that nothing is kept longer.
void join_lists(Program& program, const Analysis& known) {
  const auto takes = [](const Instruction& i) {
    return i.op->communicates == Communicates::none && !i.op->issues && !i.op->completes;
  };
  const auto ends = [](const Analysis& known, PlaceIndex place) {
    return !known.writes(place).empty();
  };
  Joiner(program, known, {takes, ends, std::numeric_limits<std::int64_t>::max()}).join();
}

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  const auto add = [&](const char* name, const char* about,
                       void (*run)(Program& program, const Analysis& known)) {
    registrar.add<graph::Change>(name, [=] {
      return graph::Change{.name = name,
                           .about = about,
                           .facts = {.keeps_bits = true},
                           .run = [=](graph::Editor& edit) { run(edit.program(), edit.known()); }};
    });
  };
  add("buckets", "Joins neighbouring reductions of one kind, type and group, up to 16 MiB.",
      make_buckets);
  add("split_lists",
      "Cuts calls of lists, such as an optimizer's, into one for each place of the lists.",
      split_lists);
  add("join_lists", "Joins neighbouring calls of one operator over lists into one.", join_lists);
}
