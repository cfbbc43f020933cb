module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>
module tessera.grammar;

import tessera.base;

namespace tessera::grammar {
namespace {

constexpr std::int32_t deepest = 256;              // rules within each other
constexpr std::int64_t most_work = 20'000'000;     // steps for the tokens of one place
constexpr std::size_t most_stacks = 400'000;       // that are known at the same time
constexpr std::size_t most_transitions = 4 << 20;  // likewise
constexpr std::size_t most_kept = 1000;            // sets of tokens

constexpr std::int32_t none = -1;
constexpr std::int32_t unknown = -2;

}  // namespace

TokenTree::TokenTree(const std::vector<std::string>& tokens) : texts_(tokens), ids_(tokens.size()) {
  std::iota(ids_.begin(), ids_.end(), 0);
  const auto text_of = [&](std::int32_t id) -> const std::string& {
    return texts_[static_cast<std::size_t>(id)];
  };
  std::erase_if(ids_, [&](std::int32_t id) { return text_of(id).empty(); });
  std::ranges::stable_sort(ids_, {}, text_of);
  std::vector<std::size_t> path;  // the entries of the last text's bytes
  std::string_view last;
  const auto close = [&](std::size_t length, std::size_t at) {
    for (; path.size() > length; path.pop_back()) {
      Entry& entry = entries_[path.back()];
      entry.after = static_cast<std::int32_t>(entries_.size());
      entry.end_of_all = static_cast<std::int32_t>(at);
    }
  };
  for (std::size_t at = 0; at < ids_.size(); ++at) {
    const std::string_view text = text_of(ids_[at]);
    const auto differs = std::ranges::mismatch(text, last).in1;
    close(static_cast<std::size_t>(differs - text.begin()), at);
    while (path.size() < text.size()) {
      const std::size_t depth = path.size();
      const auto byte = static_cast<std::uint8_t>(text[depth]);
      for (const std::size_t before : path) {
        entries_[before].below.add(byte);
      }
      path.push_back(entries_.size());
      entries_.push_back({.byte = byte,
                          .depth = static_cast<std::int32_t>(depth),
                          .first = static_cast<std::int32_t>(at),
                          .end = static_cast<std::int32_t>(at)});
    }
    entries_[path.back()].end = static_cast<std::int32_t>(at + 1);
    last = text;
  }
  close(0, ids_.size());
}

/// A machine that is made as far as texts need it: a set of stacks is a state of it.
struct Constraint::State {
  Automaton automaton;
  std::shared_ptr<const TokenTree> tokens;
  std::string name;

  struct Stack {
    std::int32_t node = 0;
    std::int32_t below = none;  // the stack to which the rule returns
    std::int32_t depth = 0;
  };
  struct Stacks {
    std::vector<std::int32_t> all;  // sorted; each one's node reads bytes
    bool complete = false;
    std::vector<std::int32_t> next;  // by the classes of bytes
  };

  std::vector<Stack> stacks = {};
  std::unordered_map<std::uint64_t, std::int32_t> stack_numbers = {};
  std::vector<Stacks> states = {};
  std::map<std::pair<bool, std::vector<std::int32_t>>, std::int32_t> state_numbers = {};
  std::map<std::int32_t, std::shared_ptr<const Allowed>> kept = {};
  std::int64_t work = 0;

  /// Forgets what was found, before it takes too much memory.
  void make_room() {
    if (stacks.size() > most_stacks / 2 || kept.size() > most_kept ||
        states.size() * automaton.classes() > most_transitions / 2) {
      stacks.clear();
      stack_numbers.clear();
      states.clear();
      state_numbers.clear();
      kept.clear();
    }
    work = 0;
  }

  void check_size() {
    if (work > most_work || stacks.size() > most_stacks ||
        states.size() * automaton.classes() > most_transitions) {
      fail_input({.thing = name,
                  .wrong = "the grammar is too ambiguous",
                  .advice = "avoid parts that several rules can read in the same way"});
    }
  }

  std::int32_t stack(std::int32_t node, std::int32_t below) {
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(node)) << 32U |
                              static_cast<std::uint32_t>(below);
    const auto [found, added] =
        stack_numbers.try_emplace(key, static_cast<std::int32_t>(stacks.size()));
    if (added) {
      stacks.push_back(
          {.node = node,
           .below = below,
           .depth = below == none ? 0 : stacks[static_cast<std::size_t>(below)].depth + 1});
    }
    return found->second;
  }

  static bool only_ends(const Automaton::Node& node) {
    return node.ends && node.bytes.empty() && node.empty.empty() && node.calls.empty();
  }

  /// The state with all stacks that these become without reading a byte.
  std::int32_t state_of(std::vector<std::int32_t> open) {
    Stacks state;
    std::unordered_set<std::int32_t> seen(open.begin(), open.end());
    const auto visit = [&](std::int32_t node, std::int32_t below) {
      ++work;
      const std::int32_t number = stack(node, below);
      if (seen.insert(number).second) {
        open.push_back(number);
      }
    };
    while (!open.empty()) {
      const std::int32_t number = open.back();
      open.pop_back();
      const Stack top = stacks[static_cast<std::size_t>(number)];
      const Automaton::Node& node = automaton.node(top.node);
      if (!node.bytes.empty()) {
        state.all.push_back(number);
      }
      for (const std::int32_t to : node.empty) {
        visit(to, top.below);
      }
      for (const Automaton::Call& call : node.calls) {
        if (only_ends(automaton.node(call.to))) {
          visit(call.start, top.below);  // nothing of this rule is left: loops do not grow stacks
        } else if (top.depth < deepest) {
          visit(call.start, stack(call.to, top.below));
        }
      }
      if (node.ends && top.below == none) {
        state.complete = true;
      } else if (node.ends) {
        const Stack below = stacks[static_cast<std::size_t>(top.below)];
        visit(below.node, below.below);
      }
      check_size();
    }
    if (state.all.empty() && !state.complete) {
      return none;
    }
    std::ranges::sort(state.all);
    const auto [found, added] = state_numbers.try_emplace({state.complete, state.all},
                                                          static_cast<std::int32_t>(states.size()));
    if (added) {
      state.next.assign(automaton.classes(), unknown);
      states.push_back(std::move(state));
    }
    return found->second;
  }

  std::int32_t next(std::int32_t from, std::uint8_t byte) {
    const std::size_t of_class = automaton.class_of(byte);
    const auto number = static_cast<std::size_t>(from);
    ++work;
    if (states[number].next[of_class] == unknown) {
      std::vector<std::int32_t> open;
      for (const std::int32_t one : states[number].all) {
        const Stack top = stacks[static_cast<std::size_t>(one)];
        for (const Automaton::ByteEdge& edge : automaton.node(top.node).bytes) {
          ++work;
          if (byte >= edge.first && byte <= edge.last) {
            open.push_back(stack(edge.to, top.below));
          }
        }
      }
      const std::int32_t found = open.empty() ? none : state_of(std::move(open));
      states[number].next[of_class] = found;
    }
    return states[number].next[of_class];
  }

  std::int32_t number_of(const Place& place) {
    std::vector<std::int32_t> all;
    for (const std::vector<std::int32_t>& nodes : place.stacks) {
      std::int32_t below = none;
      for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
        below = stack(*node, below);
      }
      all.push_back(below);
    }
    std::ranges::sort(all);
    const auto [found, added] =
        state_numbers.try_emplace({place.complete, all}, static_cast<std::int32_t>(states.size()));
    if (added) {
      states.push_back({.all = std::move(all),
                        .complete = place.complete,
                        .next = std::vector<std::int32_t>(automaton.classes(), unknown)});
    }
    return found->second;
  }

  Place place_of(std::int32_t number) const {
    const Stacks& state = states[static_cast<std::size_t>(number)];
    Place place{.stacks = {}, .complete = state.complete};
    for (std::int32_t one : state.all) {
      std::vector<std::int32_t>& nodes = place.stacks.emplace_back();
      for (; one != none; one = stacks[static_cast<std::size_t>(one)].below) {
        nodes.push_back(stacks[static_cast<std::size_t>(one)].node);
      }
    }
    return place;
  }

  /// The bytes below 128 after which a state is the same again, as within a string.
  TokenTree::Bytes stays_after(std::int32_t number) {
    constexpr std::uint8_t ascii = 128;
    TokenTree::Bytes bytes;
    for (std::uint8_t byte = 0; byte < ascii; ++byte) {
      if (next(number, byte) == number) {
        bytes.add(byte);
      }
    }
    return bytes;
  }

  Allowed tokens_after(std::int32_t number) {
    constexpr std::int32_t few = 32;  // entries, for which it is not worth while to look
    Allowed allowed{.tokens = std::vector<bool>(static_cast<std::size_t>(tokens->size())),
                    .any = false};
    const auto allow = [&](std::int32_t first, std::int32_t end) {
      for (std::int32_t at = first; at < end; ++at) {
        allowed.tokens[static_cast<std::size_t>(tokens->ids()[static_cast<std::size_t>(at)])] =
            true;
        allowed.any = true;
      }
    };
    std::map<std::int32_t, TokenTree::Bytes> stays;
    std::vector<std::int32_t> path = {number};  // the states after so many bytes
    const auto& entries = tokens->entries();
    for (std::size_t i = 0; i < entries.size();) {
      const TokenTree::Entry& entry = entries[i];
      const auto depth = static_cast<std::size_t>(entry.depth);
      const std::int32_t after = next(path[depth], entry.byte);
      if (after == none) {
        i = static_cast<std::size_t>(entry.after);
        continue;
      }
      const auto size = entry.after - static_cast<std::int32_t>(i);
      if (size > few) {
        auto found = stays.find(after);
        if (found == stays.end()) {
          found = stays.emplace(after, stays_after(after)).first;
        }
        if (entry.below.within(found->second)) {
          allow(entry.first, entry.end_of_all);  // whatever follows, the state stays
          i = static_cast<std::size_t>(entry.after);
          continue;
        }
      }
      path.resize(depth + 1);
      path.push_back(after);
      allow(entry.first, entry.end);
      ++i;
    }
    return allowed;
  }
};

Constraint::Constraint(const Grammar& grammar, std::shared_ptr<const TokenTree> tokens,
                       std::string name)
    : state_(std::make_unique<State>(State{
          .automaton = Automaton(grammar, name), .tokens = std::move(tokens), .name = name})) {}

Constraint::~Constraint() = default;

Constraint::Place Constraint::begin() {
  state_->make_room();
  return state_->place_of(state_->state_of({state_->stack(state_->automaton.start(), none)}));
}

std::optional<Constraint::Place> Constraint::after(const Place& place, std::int64_t token) {
  state_->make_room();
  const std::string& text = state_->tokens->text(token);
  std::int32_t number = state_->number_of(place);
  for (std::size_t i = 0; i < text.size() && number != none; ++i) {
    number = state_->next(number, static_cast<std::uint8_t>(text[i]));
  }
  return text.empty() || number == none ? std::nullopt : std::optional(state_->place_of(number));
}

std::shared_ptr<const Allowed> Constraint::allowed(const Place& place) {
  state_->make_room();
  const std::int32_t number = state_->number_of(place);
  auto& kept = state_->kept[number];
  if (!kept) {
    kept = std::make_shared<const Allowed>(state_->tokens_after(number));
  }
  return kept;
}

bool Constraint::accepts(std::string_view text) {
  state_->make_room();
  std::int32_t number = state_->state_of({state_->stack(state_->automaton.start(), none)});
  for (std::size_t i = 0; i < text.size() && number != none; ++i) {
    number = state_->next(number, static_cast<std::uint8_t>(text[i]));
  }
  return number != none && state_->states[static_cast<std::size_t>(number)].complete;
}

}  // namespace tessera::grammar
