// Every registered operator refuses a call that does not match its schema. No operator is known
// here by name.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;

using namespace tessera;

namespace {

bool is_list(const Op::Parameter& operand) { return operand.type.find("...") != std::string::npos; }
bool is_optional(const Op::Parameter& operand) {
  return operand.type.find('?') != std::string::npos;
}

/// One tensor for each operand, two for a list.
std::vector<Tensor> some_operands(const Op& op) {
  std::vector<Tensor> in;
  for (const Op::Parameter& operand : op.operands) {
    for (int i = is_list(operand) ? 2 : 1; i > 0; --i) {
      in.push_back(zeros({2, 3}));
    }
  }
  return in;
}

/// One value for each attribute but the one at `without` (none: -1).
Attributes some_attributes(const Op& op, std::ptrdiff_t without = -1) {
  if (op.arguments != nullptr && without < 0) {
    return op.arguments->blank();
  }
  Attributes attributes;
  for (std::size_t i = 0; i < op.parameters.size(); ++i) {
    const std::string& type = op.parameters[i].type;
    if (static_cast<std::ptrdiff_t>(i) == without) {
      continue;
    }
    if (type == "dims") {
      attributes.add(Dims{});
    } else if (type == "float" || type == "free") {
      attributes.scalar(0);
    } else {
      attributes.add(0);
    }
  }
  return attributes;
}

/// What the call says is wrong; it must fail before anything looks at the operands.
std::string error_of(const Op& op, const std::vector<Tensor>& in, const Attributes& attributes) {
  try {
    call(op, in, attributes);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool names(const std::string& text, const Op& op, const std::string& what) {
  return text.starts_with(op.name + ": ") && text.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("a call with too few or too many operands is refused") {
  for (const Op* op : all_ops()) {
    std::vector<Tensor> in = some_operands(*op);
    const std::size_t lists = op->counts.lists;
    if (lists != 1) {  // a single list may have any length
      in.push_back(zeros({2, 3}));
      const std::string more = error_of(*op, in, some_attributes(*op));
      INFO(op->schema << ": " << more);
      CHECK(names(more, *op, "number of operands"));
      in.pop_back();
    }
    if (lists == 1) {
      in.resize(op->counts.single);
    }
    if (!in.empty()) {
      in.pop_back();
      const std::string fewer = error_of(*op, in, some_attributes(*op));
      INFO(op->schema << ": " << fewer);
      CHECK(names(fewer, *op, "number of operands"));
    }
  }
}

TEST_CASE("a call with a missing or a further attribute is refused") {
  for (const Op* op : all_ops()) {
    const std::vector<Tensor> in = some_operands(*op);
    for (std::size_t i = 0; i < op->parameters.size(); ++i) {
      const std::string text =
          error_of(*op, in, some_attributes(*op, static_cast<std::ptrdiff_t>(i)));
      INFO(op->schema << " without " << op->parameters[i].name << ": " << text);
      CHECK(names(text, *op, "attributes do not match the schema"));
    }
    if (op->arguments != nullptr) {
      continue;  // an aggregate has as many as it declares
    }
    for (const bool is_free : {false, true}) {
      Attributes more = some_attributes(*op);
      is_free ? more.scalar(1) : more.add(1);
      const std::string text = error_of(*op, in, more);
      INFO(op->schema << " with one more: " << text);
      CHECK(names(text, *op, "attributes do not match the schema"));
    }
  }
}

TEST_CASE("a list of extents that is longer than the attributes is refused") {
  const Tensor x = zeros({2, 3});
  for (const std::int64_t length : {std::int64_t{4}, std::int64_t{-1}, std::int64_t{1} << 62}) {
    const std::string text =
        error_of(find_op("permute"), {x}, Attributes().add(length).add(0).add(1));
    INFO(text);
    CHECK(names(text, find_op("permute"), "attributes do not match the schema"));
  }
}

TEST_CASE("an undefined operand is refused by name unless the schema says that it may be absent") {
  for (const Op* op : all_ops()) {
    const std::vector<Tensor> all = some_operands(*op);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Op::OperandPlace place = op->place_of(i, all.size());
      const Op::Parameter& operand = op->operands[place.operand];
      if (is_optional(operand)) {
        continue;
      }
      std::vector<Tensor> in = all;
      in[i] = Tensor();
      std::string name = operand.name;
      if (is_list(operand)) {
        name += "[" + std::to_string(place.in_list) + "]";
      }
      const std::string text = error_of(*op, in, some_attributes(*op));
      INFO(op->schema << ": " << text);
      CHECK(names(text, *op, "operand '" + name + "' is an undefined tensor"));
    }
  }
}

TEST_CASE("an operand far behind in a list is looked at too") {
  std::vector<Tensor> many(100, zeros({2}));
  many[80] = Tensor();
  const std::string text = error_of(find_op("cat"), many, find_op("cat").arguments->blank());
  CHECK(text.starts_with("cat: operand 'tensors[80]' is an undefined tensor"));
}

TEST_CASE("what localize makes of a call is held against the schema") {
  Op op = find_op("sigmoid");
  op.schema = "forgetful(x; shape: dims)";
  op.operands.clear();
  op.parameters.clear();
  op.backward = nullptr;
  op.localize = [](const LocalContext&) { return Attributes(); };
  const Op& forgetful = register_op(op);
  const DeviceMesh mesh = DeviceMesh::make({"a"}, Dims{1});
  const Tensor x =
      make_distributed(zeros({4}), Spec::make(Layout::replicated(mesh), Dims{4}, DType::f32));
  const std::string text = error_of(forgetful, {x}, Attributes().add(Dims{4}));
  CHECK(names(text, forgetful, "attributes do not match the schema"));
}

TEST_CASE("a schema with an attribute of an unknown type is refused") {
  std::string text;
  try {
    register_op({.schema = "mistyped(x; factor: flaot)"});
  } catch (const Error& error) {
    text = error.what();
  }
  CHECK(text.find("unknown type 'flaot'") != std::string::npos);
}
