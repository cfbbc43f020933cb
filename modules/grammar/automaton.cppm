export module tessera.grammar:automaton;

import tessera.base;
import :expression;

// A grammar as a machine over bytes with a stack.

export namespace tessera::grammar {

/// Networks of nodes, one for each rule. A path through a rule's network from its start to a node
/// that ends it spells the texts of the rule; an edge spells a byte, nothing, or the text of
/// another rule.
class Automaton {
 public:
  struct ByteEdge {
    std::uint8_t first = 0;
    std::uint8_t last = 0;
    std::int32_t to = 0;
  };
  struct Call {
    std::int32_t start = 0;  // of the rule
    std::int32_t to = 0;     // afterwards
  };
  struct Node {
    std::vector<ByteEdge> bytes = {};
    std::vector<std::int32_t> empty = {};
    std::vector<Call> calls = {};
    bool ends = false;
  };

  /// Nodes that no text ends at are left out. `name` begins the errors. Errors (input): no text
  /// follows the grammar; a rule begins with itself; it is too large.
  Automaton(const Grammar& grammar, const std::string& name);

  std::int32_t start() const { return 0; }
  const Node& node(std::int32_t number) const { return nodes_[static_cast<std::size_t>(number)]; }
  /// Bytes of one class are in the same edges.
  std::size_t classes() const { return representatives_.size(); }
  std::size_t class_of(std::uint8_t byte) const { return class_of_[byte]; }
  std::uint8_t representative(std::size_t of_class) const { return representatives_[of_class]; }

 private:
  class Builder;
  void prune(const std::vector<bool>& productive);
  void find_classes();

  std::vector<Node> nodes_;
  std::array<std::uint16_t, 256> class_of_ = {};
  std::vector<std::uint8_t> representatives_;
};

}  // namespace tessera::grammar
