// Whether the programs of all ranks fit together.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.tensor;
import tessera.collective;
import tessera.program;
import tessera.passes;
import :compare_programs;

namespace tessera {
namespace {

using Calls = std::vector<graph::CommunicationCall>;
using Groups = std::map<CallGroup, Calls>;

std::int64_t hash_of(const std::string& text) {
  return static_cast<std::int64_t>(std::hash<std::string>{}(text));
}

std::int64_t hash_of(const Calls& calls) {
  std::string all;
  for (const graph::CommunicationCall& call : calls) {
    all += call.agreed + '\n';
  }
  return hash_of(all);
}

std::int64_t hash_of(const CallGroup& group) { return hash_of(to_string(group)); }

/// Each rank's values, of which ranks have different numbers. `none`: this rank says nothing.
std::vector<std::vector<std::int64_t>> gathered(collective::World& world,
                                                const std::vector<std::int64_t>& mine) {
  collective::Communicator& everyone = world.everyone();
  const auto size = static_cast<std::size_t>(world.size());
  const auto count = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> counts(size);
  everyone.all_gather(&count, counts.data(), 1, DType::i64);
  const auto most = static_cast<std::size_t>(*std::ranges::max_element(counts));
  std::vector<std::vector<std::int64_t>> all(size);
  if (most == 0) {
    return all;
  }
  std::vector<std::int64_t> padded = mine;
  padded.resize(most);
  std::vector<std::int64_t> values(size * most);
  everyone.all_gather(padded.data(), values.data(), static_cast<std::int64_t>(most), DType::i64);
  for (std::size_t rank = 0; rank < size; ++rank) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(rank * most);
    all[rank].assign(begin, begin + static_cast<std::ptrdiff_t>(counts[rank]));
  }
  return all;
}

/// The root's text on every rank.
std::string broadcast(collective::World& world, std::string text, int root) {
  auto bytes = static_cast<std::int64_t>(text.size());
  world.everyone().broadcast(&bytes, 1, DType::i64, root);
  text.resize(static_cast<std::size_t>(bytes));
  if (bytes > 0) {
    world.everyone().broadcast(text.data(), bytes, DType::u8, root);
  }
  return text;
}

/// What a rank's own group has on another rank: nothing where that has no program.
struct RankTable {
  explicit RankTable(std::vector<std::vector<std::int64_t>> all) : rows(std::move(all)) {}

  bool has_program(int rank) const { return !rows[static_cast<std::size_t>(rank)].empty(); }
  /// 0: the rank makes no call in the group.
  std::int64_t of(int rank, std::int64_t group) const {
    const std::vector<std::int64_t>& row = rows[static_cast<std::size_t>(rank)];
    for (std::size_t at = 1; at + 1 < row.size(); at += 2) {
      if (row[at] == group) {
        return row[at + 1];
      }
    }
    return 0;
  }

  std::vector<std::vector<std::int64_t>> rows;  // 1, then a group and its calls, as hashes
};

constexpr std::uint64_t balance_modulus = std::uint64_t{1} << 44U;  // 2^19 sums of ranks fit in i64

/// A number of each rank, whose sum over all ranks is 0 modulo 2^44 where the ranks of each group
/// have the same calls in it; else it is another one, but for one case in 2^44. The rank at place i
/// of a group gives x(i) - x(i + 1), where x follows from the group, its calls and the place:
/// around the group these cancel where all have the same x.
std::int64_t balance(const Groups& groups, int rank) {
  std::uint64_t sum = 0;
  for (const auto& [group, calls] : groups) {
    const auto place =
        static_cast<std::size_t>(std::ranges::find(group.ranks, rank) - group.ranks.begin());
    const std::uint64_t both = hash_combine(static_cast<std::uint64_t>(hash_of(group)),
                                            static_cast<std::uint64_t>(hash_of(calls)));
    sum += hash_combine(both, place) - hash_combine(both, (place + 1) % group.ranks.size());
  }
  return static_cast<std::int64_t>(sum % balance_modulus);
}

bool balanced(collective::World& world, std::int64_t own) {
  std::int64_t sum = 0;
  world.everyone().all_reduce(&own, &sum, 1, DType::i64, ReduceOp::sum);
  return static_cast<std::uint64_t>(sum) % balance_modulus == 0;
}

/// This rank's first member that has other calls in a group of both: {rank, hash of the group}.
std::vector<std::int64_t> first_difference(const Groups& groups, const RankTable& table, int rank) {
  for (const auto& [group, calls] : groups) {
    const std::int64_t name = hash_of(group);  // once: a group may have thousands of ranks
    const std::int64_t own = table.of(rank, name);
    for (const int other : group.ranks) {
      if (other != rank && static_cast<std::size_t>(other) < table.rows.size() &&
          table.has_program(other) && table.of(other, name) != own) {
        return {other, name};
      }
    }
  }
  return {};
}

/// A line for each call of the group: what must agree, and the instruction.
std::string listed(const Groups& groups, const Program* program, std::int64_t hash) {
  std::string text;
  for (const auto& [group, calls] : groups) {
    if (hash_of(group) == hash) {
      for (const graph::CommunicationCall& call : calls) {
        text += fmt::format("{}\t{}\n", call.agreed, graph::call_in_words(*program, call.place));
      }
    }
  }
  return text;
}

/// "rank 1: section 'update', instruction 3 (...)".
std::string call_in_words(int rank, const std::vector<std::string_view>& calls, std::size_t at) {
  return fmt::format("  rank {}: {}", rank,
                     at < calls.size()
                         ? calls[at].substr(calls[at].find('\t') + 1)
                         : fmt::format("no such call, after {} of the group", calls.size()));
}

/// As text has no place in an exchange.
std::int64_t hash_of(const graph::Proposal& proposal) {
  return static_cast<std::int64_t>(
      hash_combine(static_cast<std::uint64_t>(hash_of(proposal.group)), proposal.change));
}

}  // namespace

graph::Agree agreement_of(collective::World& world) {
  return [&world](std::span<const graph::Proposal> proposals) {
    std::vector<std::int64_t> mine;
    for (const graph::Proposal& proposal : proposals) {
      mine.push_back(hash_of(proposal));
    }
    std::vector<std::vector<std::int64_t>> all = gathered(world, mine);
    for (std::vector<std::int64_t>& of_rank : all) {
      std::ranges::sort(of_rank);
    }
    std::vector<bool> agreed;
    for (std::size_t k = 0; k < proposals.size(); ++k) {
      agreed.push_back(std::ranges::all_of(proposals[k].group.ranks, [&](int rank) {
        return static_cast<std::size_t>(rank) < all.size() &&
               std::ranges::binary_search(all[static_cast<std::size_t>(rank)], mine[k]);
      }));
    }
    return agreed;
  };
}

void compare_programs(collective::World& world, const Program* program) {
  const auto communication = [&] {
    return program != nullptr ? graph::communication_of(*program) : Groups();
  };
  // The groups, each as long as its ranks are many, are gone before this rank waits for the others.
  const std::int64_t own = balance(communication(), world.rank());
  if (balanced(world, own)) {
    return;
  }
  const Groups groups = communication();
  std::vector<std::int64_t> mine;  // which ranks differ, and where; none where some have no program
  if (program != nullptr) {
    mine.push_back(1);
    for (const auto& [group, calls] : groups) {
      mine.push_back(hash_of(group));
      mine.push_back(hash_of(calls));
    }
  }
  const RankTable table(gathered(world, mine));
  const auto differences = gathered(world, first_difference(groups, table, world.rank()));
  const auto found =
      std::ranges::find_if(differences, [](const auto& one) { return !one.empty(); });
  if (found == differences.end()) {
    return;
  }
  const auto first = static_cast<int>(found - differences.begin());
  const auto second = static_cast<int>((*found)[0]);
  const std::int64_t group = (*found)[1];
  const std::string here = listed(groups, program, group);
  const std::string of_first = broadcast(world, here, first);
  const std::string of_second = broadcast(world, here, second);
  const std::vector<std::string_view> left = graph::lines_of(of_first);
  const std::vector<std::string_view> right = graph::lines_of(of_second);
  const auto agreed = [](std::string_view line) { return line.substr(0, line.find('\t')); };
  const auto differs = std::ranges::mismatch(left, right, {}, agreed, agreed);
  const auto at = static_cast<std::size_t>(differs.in1 - left.begin());
  std::string name;
  for (const auto& [one, calls] : groups) {
    name = hash_of(one) == group ? to_string(one) : name;
  }
  name = broadcast(world, name, first);
  fail_input({.thing = "captured step",
              .wrong = fmt::format("rank {} and rank {} have different programs: call {} of the "
                                   "group '{}' is not the same",
                                   first, second, at + 1, name),
              .advice = "give all ranks the same config and plugins; changes must "
                        "decide about communication from what all ranks have in common",
              .details = call_in_words(first, left, at) + "\n" + call_in_words(second, right, at)});
}

}  // namespace tessera
