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

Attributes some_attributes(const Op& op) {
  return op.arguments == nullptr ? Attributes() : op.arguments->blank();
}

/// Arguments that no operator has.
struct OtherArgs {
  bool of_the_tests;
};

/// What the call says is wrong; it must fail before anything looks at the operands.
std::string call_error(const Op& op, const std::vector<Tensor>& in, const Attributes& attributes) {
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

TEST_CASE("a schema names the operands and then the arguments") {
  CHECK(find_op("exp").schema == "exp(x)");
  CHECK(find_op("softmax").schema == "softmax(x; dim: int)");
  CHECK(find_op("cat").schema == "cat(tensors...; dim: int)");
}

TEST_CASE("a call with too few or too many operands is refused") {
  for (const Op* op : all_ops()) {
    std::vector<Tensor> in = some_operands(*op);
    const std::size_t lists = op->counts.lists;
    if (lists != 1) {  // a single list may have any length
      in.push_back(zeros({2, 3}));
      const std::string more = call_error(*op, in, some_attributes(*op));
      INFO(op->schema << ": " << more);
      CHECK(names(more, *op, "number of operands"));
      in.pop_back();
    }
    if (lists == 1) {
      in.resize(op->counts.single);
    }
    if (!in.empty()) {
      in.pop_back();
      const std::string fewer = call_error(*op, in, some_attributes(*op));
      INFO(op->schema << ": " << fewer);
      CHECK(names(fewer, *op, "number of operands"));
    }
  }
}

TEST_CASE("a call with arguments of another type, or without arguments, is refused") {
  for (const Op* op : all_ops()) {
    const std::vector<Tensor> in = some_operands(*op);
    const std::string text = call_error(*op, in, OtherArgs{true});
    INFO(op->schema << ": " << text);
    CHECK(names(text, *op, "the arguments do not match the schema"));
    if (op->arguments != nullptr) {
      const std::string none = call_error(*op, in, {});
      INFO(op->schema << ": " << none);
      CHECK(names(none, *op, "the arguments do not match the schema"));
    }
  }
}

TEST_CASE("arguments with the same types under other names are refused") {
  struct Wrong {
    std::int64_t extent;
  };
  const std::string text = call_error(find_op("softmax"), {zeros({2, 3})}, Wrong{1});
  CHECK(names(text, find_op("softmax"), "the arguments do not match the schema"));
}

TEST_CASE("the arguments of every operator are read back from their text and their JSON") {
  std::size_t with_arguments = 0;
  for (const Op* op : all_ops()) {
    if (op->arguments == nullptr) {
      CHECK(op->parameters.empty());
      continue;
    }
    ++with_arguments;
    const Attributes blank = op->arguments->blank();
    INFO(op->schema << ": " << print_arguments(*op, blank));
    CHECK(parse_arguments(*op, print_arguments(*op, blank)) == blank);
    CHECK(attributes_from_json(*op->arguments, to_json(*op->arguments, blank), op->name) == blank);
  }
  CHECK(with_arguments > 80);
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
      const std::string text = call_error(*op, in, some_attributes(*op));
      INFO(op->schema << ": " << text);
      CHECK(names(text, *op, "operand '" + name + "' is an undefined tensor"));
    }
  }
}

TEST_CASE("an operand far behind in a list is looked at too") {
  std::vector<Tensor> many(100, zeros({2}));
  many[80] = Tensor();
  const std::string text = call_error(find_op("cat"), many, find_op("cat").arguments->blank());
  CHECK(text.starts_with("cat: operand 'tensors[80]' is an undefined tensor"));
}

TEST_CASE("what localize makes of a call is held against the schema") {
  Op op = find_op("sigmoid");
  struct ShapeArgs {
    Dims shape;
  };
  op.schema = "forgetful(x)";
  op.operands.clear();
  op.parameters.clear();
  op.backward = nullptr;
  op.localize = [](const LocalContext&) { return Attributes(); };
  const Op& forgetful = register_op<ShapeArgs>(op);
  const DeviceMesh mesh = DeviceMesh::make({"a"}, Dims{1});
  const Tensor x =
      make_distributed(zeros({4}), Spec::make(Layout::replicated(mesh), Dims{4}, DType::f32));
  const std::string text = call_error(forgetful, {x}, ShapeArgs{{4}});
  CHECK(names(text, forgetful, "the arguments do not match the schema"));
}

TEST_CASE("a schema that lists arguments that are not declared is refused") {
  std::string text;
  try {
    register_op({.schema = "undeclared(x; factor: float)"});
  } catch (const Error& error) {
    text = error.what();
  }
  CHECK(text.find("lists other arguments than its aggregate") != std::string::npos);
}
