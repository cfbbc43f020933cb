module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tessera/utf8.hpp>
#include <utility>
#include <vector>
module tessera.grammar;

import tessera.base;

namespace tessera::grammar {
namespace {

constexpr std::size_t most_nodes = 200'000;

struct ByteRange {
  std::uint8_t first = 0;
  std::uint8_t last = 0;
  auto operator<=>(const ByteRange&) const = default;
};
using ByteRanges = std::vector<ByteRange>;  // one for each byte of a character

ByteRanges utf8(char32_t first, char32_t last) {
  std::string low;
  std::string high;
  append_utf8(low, first);
  append_utf8(high, last);
  ByteRanges ranges;
  for (std::size_t i = 0; i < low.size(); ++i) {
    ranges.push_back({static_cast<std::uint8_t>(low[i]), static_cast<std::uint8_t>(high[i])});
  }
  return ranges;
}

/// Divides a range of characters into ranges whose bytes are independent of each other. Source: the
/// compiler of RE2 (Cox, Regular Expression Matching in the Wild, 2010).
void add_ranges(char32_t first, char32_t last, std::vector<ByteRanges>& all) {
  constexpr char32_t surrogates = 0xD800;
  constexpr char32_t behind_surrogates = 0xE000;
  if (first < surrogates && last >= surrogates) {
    add_ranges(first, surrogates - 1, all);
    first = surrogates;
  }
  first = first >= surrogates ? std::max(first, behind_surrogates) : first;
  if (first > last) {
    return;
  }
  for (const char32_t end : {0x7FU, 0x7FFU, 0xFFFFU}) {
    if (first <= end && last > end) {
      add_ranges(first, end, all);
      add_ranges(end + 1, last, all);
      return;
    }
  }
  const std::size_t length = utf8(first, first).size();
  for (std::size_t i = 1; i < length; ++i) {
    const char32_t mask = (char32_t{1} << (6 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) {
      continue;
    }
    if ((first & mask) != 0) {
      add_ranges(first, first | mask, all);
      add_ranges((first | mask) + 1, last, all);
      return;
    }
    if ((last & mask) != mask) {
      add_ranges(first, (last & ~mask) - 1, all);
      add_ranges(last & ~mask, last, all);
      return;
    }
  }
  all.push_back(utf8(first, last));
}

/// Nodes that have a property, which follows for a node from those that its edges lead to.
template <class Nodes, class Holds>
std::vector<bool> closure(const Nodes& nodes, const Holds& holds) {
  std::vector<std::vector<std::int32_t>> users(nodes.size());
  const auto add_user = [&](std::int32_t of, std::size_t user) {
    users[static_cast<std::size_t>(of)].push_back(static_cast<std::int32_t>(user));
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const auto& edge : nodes[i].bytes) {
      add_user(edge.to, i);
    }
    for (const std::int32_t to : nodes[i].empty) {
      add_user(to, i);
    }
    for (const auto& call : nodes[i].calls) {
      add_user(call.to, i);
      add_user(call.start, i);
    }
  }
  std::vector<bool> has(nodes.size());
  std::vector<std::int32_t> changed;
  const auto look = [&](std::size_t i) {
    if (!has[i] && holds(nodes[i], has)) {
      has[i] = true;
      changed.push_back(static_cast<std::int32_t>(i));
    }
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    look(i);
  }
  while (!changed.empty()) {
    const auto last = static_cast<std::size_t>(changed.back());
    changed.pop_back();
    for (const std::int32_t user : users[last]) {
      look(static_cast<std::size_t>(user));
    }
  }
  return has;
}

bool at(const std::vector<bool>& has, std::int32_t node) {
  return has[static_cast<std::size_t>(node)];
}

}  // namespace

class Automaton::Builder {
 public:
  Builder(const Grammar& grammar, std::vector<Node>& nodes, const std::string& name)
      : nodes_(nodes), name_(name) {
    for (std::size_t i = 0; i < grammar.rules.size(); ++i) {
      starts_.push_back(add());
    }
    for (std::size_t i = 0; i < grammar.rules.size(); ++i) {
      build_rule(starts_[i], grammar.rules[i]);
    }
  }

  /// Error (input): a rule begins with itself.
  void check_left_recursion() const {
    const auto can_be_empty = closure(nodes_, [](const Node& node, const std::vector<bool>& has) {
      return node.ends || std::ranges::any_of(node.empty, [&](auto to) { return at(has, to); }) ||
             std::ranges::any_of(node.calls, [&](const Call& call) {
               return at(has, call.start) && at(has, call.to);
             });
    });
    // Steps without a byte must not lead from a rule's start to itself.
    enum class Mark : std::uint8_t { none, open, done };
    std::vector<Mark> marks(nodes_.size(), Mark::none);
    for (std::size_t root = 0; root < nodes_.size(); ++root) {
      std::vector<std::pair<std::int32_t, std::size_t>> path;
      const auto enter = [&](std::int32_t node, bool by_call) {
        Mark& mark = marks[static_cast<std::size_t>(node)];
        if (mark == Mark::open && by_call) {
          fail_input({.thing = name_,
                      .wrong = "a rule begins with itself",
                      .advice = "write what it begins with first (left recursion)"});
        }
        if (mark == Mark::none) {
          mark = Mark::open;
          path.emplace_back(node, 0);
        }
      };
      enter(static_cast<std::int32_t>(root), false);
      while (!path.empty()) {
        const auto [number, step] = path.back();
        ++path.back().second;
        const Node& node = nodes_[static_cast<std::size_t>(number)];
        const std::size_t calls = node.calls.size();
        if (step < calls) {
          enter(node.calls[step].start, true);
        } else if (step < 2 * calls) {
          const Call& call = node.calls[step - calls];
          if (at(can_be_empty, call.start)) {
            enter(call.to, false);
          }
        } else if (step < 2 * calls + node.empty.size()) {
          enter(node.empty[step - 2 * calls], false);
        } else {
          marks[static_cast<std::size_t>(number)] = Mark::done;
          path.pop_back();
        }
      }
    }
  }

 private:
  std::int32_t add() {
    if (nodes_.size() >= most_nodes) {
      fail_input({.thing = name_,
                  .wrong = "it is too large",
                  .expected = fmt::format("at most {} nodes", most_nodes),
                  .advice = "use smaller numbers of repetitions"});
    }
    nodes_.emplace_back();
    return static_cast<std::int32_t>(nodes_.size() - 1);
  }
  Node& node(std::int32_t number) { return nodes_[static_cast<std::size_t>(number)]; }

  void build_rule(std::int32_t start, const Expression& expression) {
    const std::int32_t end = add();
    node(end).ends = true;
    build(expression, start, end);
  }

  void build(const Expression& what, std::int32_t from, std::int32_t to) {
    switch (what.kind) {
      case Expression::Kind::bytes:
        build_bytes(what.text, from, to);
        break;
      case Expression::Kind::characters:
        build_characters(what.ranges, from, to);
        break;
      case Expression::Kind::sequence:
        for (std::size_t i = 0; i < what.parts.size(); ++i) {
          const std::int32_t next = i + 1 == what.parts.size() ? to : add();
          build(what.parts[i], from, next);
          from = next;
        }
        if (what.parts.empty()) {
          node(from).empty.push_back(to);
        }
        break;
      case Expression::Kind::choice:
        for (const Expression& part : what.parts) {
          build(part, from, to);
        }
        break;
      case Expression::Kind::repeat:
        build_repeat(what, from, to);
        break;
      case Expression::Kind::rule:
        node(from).calls.push_back({.start = starts_.at(what.number), .to = to});
        break;
    }
  }

  void build_bytes(const std::string& text, std::int32_t from, std::int32_t to) {
    if (text.empty()) {
      node(from).empty.push_back(to);
    }
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::int32_t next = i + 1 == text.size() ? to : add();
      const auto byte = static_cast<std::uint8_t>(text[i]);
      node(from).bytes.push_back({.first = byte, .last = byte, .to = next});
      from = next;
    }
  }

  /// Characters that end with the same bytes share the nodes for them.
  void build_characters(const std::vector<CharacterRange>& ranges, std::int32_t from,
                        std::int32_t to) {
    std::vector<ByteRanges> all;
    for (const auto& [first, last] : ranges) {
      add_ranges(first, last, all);
    }
    std::map<ByteRanges, std::int32_t> before;  // the node before these bytes
    const auto node_before = [&](const ByteRanges& rest, const auto& self) -> std::int32_t {
      if (rest.empty()) {
        return to;
      }
      const auto found = before.find(rest);
      if (found != before.end()) {
        return found->second;
      }
      const std::int32_t next = self(ByteRanges(rest.begin() + 1, rest.end()), self);
      const std::int32_t made = add();
      node(made).bytes.push_back({rest[0].first, rest[0].last, next});
      return before[rest] = made;
    };
    for (const ByteRanges& one : all) {
      const std::int32_t next = node_before(ByteRanges(one.begin() + 1, one.end()), node_before);
      node(from).bytes.push_back({one[0].first, one[0].last, next});
    }
  }

  void build_repeat(const Expression& what, std::int32_t from, std::int32_t to) {
    // What is repeated often is a rule: each time costs one node.
    std::int32_t start = -1;
    const auto build_part = [&](std::int32_t begin, std::int32_t end) {
      if (start >= 0) {
        node(begin).calls.push_back({.start = start, .to = end});
      } else {
        build(what.parts[0], begin, end);
      }
    };
    if (std::max(what.least, what.most) > 1) {
      start = add();
      build_rule(start, what.parts[0]);
    }
    for (std::int64_t i = 0; i < what.least; ++i) {
      const std::int32_t next = add();
      build_part(from, next);
      from = next;
    }
    if (what.most < 0) {
      const std::int32_t loop = add();
      node(from).empty.push_back(loop);
      build_part(loop, loop);
      from = loop;
    }
    for (std::int64_t i = what.least; i < what.most; ++i) {
      node(from).empty.push_back(to);
      const std::int32_t next = add();
      build_part(from, next);
      from = next;
    }
    node(from).empty.push_back(to);
  }

  std::vector<Node>& nodes_;
  const std::string& name_;
  std::vector<std::int32_t> starts_;
};

Automaton::Automaton(const Grammar& grammar, const std::string& name) {
  require(!grammar.rules.empty(), "grammar: it has no rules");
  const Builder builder(grammar, nodes_, name);
  const auto productive = closure(nodes_, [](const Node& node, const std::vector<bool>& has) {
    return node.ends ||
           std::ranges::any_of(node.bytes, [&](const auto& edge) { return at(has, edge.to); }) ||
           std::ranges::any_of(node.empty, [&](auto to) { return at(has, to); }) ||
           std::ranges::any_of(node.calls, [&](const Call& call) {
             return at(has, call.start) && at(has, call.to);
           });
  });
  if (!at(productive, start())) {
    fail_input({.thing = name, .wrong = "no text can meet it"});
  }
  prune(productive);
  builder.check_left_recursion();
  find_classes();
}

void Automaton::prune(const std::vector<bool>& productive) {
  for (Node& node : nodes_) {
    std::erase_if(node.bytes, [&](const ByteEdge& edge) { return !at(productive, edge.to); });
    std::erase_if(node.empty, [&](std::int32_t to) { return !at(productive, to); });
    std::erase_if(node.calls, [&](const Call& call) {
      return !at(productive, call.start) || !at(productive, call.to);
    });
  }
}

void Automaton::find_classes() {
  std::array<bool, 257> begins = {};
  begins[0] = true;
  for (const Node& node : nodes_) {
    for (const ByteEdge& edge : node.bytes) {
      begins.at(edge.first) = true;
      begins.at(edge.last + std::size_t{1}) = true;
    }
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (begins.at(byte)) {
      representatives_.push_back(static_cast<std::uint8_t>(byte));
    }
    class_of_.at(byte) = static_cast<std::uint16_t>(representatives_.size() - 1);
  }
}

}  // namespace tessera::grammar
