module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.tensor;
import tessera.calls;
import :accesses;
import :communication;
import :guard;
import :shadow;
import :statistics;

namespace tessera::graph {
namespace {

/// The form of the calls of a collective, or of what they are variants of.
const collective::CallForm& form_of(const Instruction& i) {
  return collective::form_of(
      collective::base_of(i.op->communicates.call().value_or(collective::CallKind::barrier)));
}

/// Tensors that every rank of the group has whole: what a gather makes, what a reduction reads, and
/// both sides of what keeps the shape. Those of an exchange are each rank's own.
std::vector<TensorIndex> wholes_of(const Instruction& i) {
  std::vector<TensorIndex> read;
  std::vector<TensorIndex> made = i.out;
  for (std::size_t k = 0; k < i.in.size(); ++k) {
    (i.writes(k) ? made : read).push_back(i.in[k]);
  }
  const collective::CallForm& form = form_of(i);
  if (form.joins) {
    return form.divides ? std::vector<TensorIndex>() : made;
  }
  return form.divides || !read.empty() ? read : made;
}

std::string agreed_of(const Program& program, const Instruction& i) {
  std::string wholes;
  for (const TensorIndex number : wholes_of(i)) {
    if (number.exists()) {
      const ProgramTensor& x = program.tensors[number];
      wholes += fmt::format(" {} x {}", name_of(x.dtype), x.shape.product());
    }
  }
  // Where tensors say how much each rank sends, arguments say what this one has room for.
  const collective::CallForm& form = form_of(i);
  const bool by_counts = form.joins && form.divides && i.op->counts.single > 1;
  return fmt::format("{}({}) {}", i.op->name, wholes,
                     by_counts ? std::string() : print_arguments(*i.op, i.attributes));
}

}  // namespace

std::optional<ProgramMessage> message_of(const Program& program, const Instruction& i) {
  static const Op& send = find_op("send");
  static const Op& receive = find_op("receive_");
  if (i.kind != Instruction::Kind::call || (i.op != &send && i.op != &receive)) {
    return std::nullopt;
  }
  const auto argument = [&](std::string_view name) {
    const std::span<const ArgumentField> fields = i.op->arguments->fields;
    const auto at = std::ranges::find(fields, name, &ArgumentField::name) - fields.begin();
    return std::get<std::int64_t>(
        i.op->arguments->values(i.attributes)[static_cast<std::size_t>(at)]);
  };
  const int peer = group_of(i)->ranks[static_cast<std::size_t>(argument("peer"))];
  const bool sends = i.op == &send;
  return ProgramMessage{.sends = sends,
                        .from = sends ? program.rank : peer,
                        .to = sends ? peer : program.rank,
                        .tag = argument("tag")};
}

std::map<CallGroup, std::vector<CommunicationCall>> communication_of(const Program& program) {
  require_lowered(program);
  std::map<CallGroup, std::vector<CommunicationCall>> groups;
  std::map<std::pair<CallGroup, std::int64_t>, std::vector<CommunicationCall>> messages;  // by tag
  const ByPlace<const Instruction*> places = places_of(program);
  for (const PlaceIndex place : places.keys()) {
    const Instruction& i = *places[place];
    if (i.kind != Instruction::Kind::call || !is_collective(i) || is_alone(i)) {
      continue;
    }
    if (const std::optional<ProgramMessage> message = message_of(program, i)) {
      const ProgramTensor& x = program.tensors[i.in[0]];
      messages[{{.ranks = {message->from, message->to}, .name = "messages"}, message->tag}]
          .push_back({fmt::format("tag {} in {}: {} x {}", message->tag, to_string(*group_of(i)),
                                  name_of(x.dtype), x.shape.product()),
                      place});
    } else {
      groups[*group_of(i)].push_back({agreed_of(program, i), place});
    }
  }
  for (const auto& [channel, calls] : messages) {
    std::vector<CommunicationCall>& all = groups[channel.first];
    all.insert(all.end(), calls.begin(), calls.end());
  }
  return groups;
}

std::string call_in_words(const Program& program, PlaceIndex place) {
  const ByPlace<const Instruction*> places = places_of(program);
  const auto end = places.begin() + place.number;
  const auto guard =
      std::find_if(std::make_reverse_iterator(end), std::make_reverse_iterator(places.begin()),
                   [](const Instruction* i) { return i->is_guard(); });
  return place_in_words(program, place) +
         (guard.base() == places.begin()
              ? std::string()
              : fmt::format(", after {}", guard_in_words(program, **guard)));
}

}  // namespace tessera::graph
