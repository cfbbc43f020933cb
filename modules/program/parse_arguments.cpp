// Reads the parentheses of an instruction's text.
module;
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.tensor;
import :line;
import :parse_arguments;

namespace tessera {
namespace {

using Kind = Instruction::Kind;

}  // namespace

std::vector<double> parse_numbers(std::string_view text) {
  std::vector<double> all;
  Line line(text);
  while (!line.ended()) {
    all.push_back(line.number<double>());
    if (!line.ended()) {
      line.expect(", ");
    }
  }
  return all;
}

void parse_arguments_of(Instruction& made, std::string_view name, std::string_view text) {
  if (name == "memory.alias") {
    made.kind = Kind::alias;
    Line line(text);
    line.expect("strides=[");
    while (!line.take("]")) {
      if (made.strides.size() > 0) {
        line.expect(", ");
      }
      made.strides.push_back(line.number<std::int64_t>());
      if (made.strides[static_cast<int>(made.strides.size()) - 1] < 0) {
        fail_input({.wrong = "a stride is negative", .expected = "0 or more"});
      }
    }
    line.expect(", offset=");
    made.offset = line.number<std::int64_t>();
    line.end();
  } else if (name == "memory.release" || name == "memory.restore") {
    made.kind = name == "memory.release" ? Kind::release : Kind::restore;
  } else if (name == "host.check") {
    made.kind = Kind::check;
    made.values = parse_numbers(text);
  } else if (name == "host.guard") {
    made.kind = Kind::check;
    Line line(text);
    made.guard = std::string(line.until(", "));
    if (made.guard.empty()) {
      fail_input("the guard has no name");
    }
    made.values = parse_numbers(line.all());
  } else {
    made.op = &find_op(name);
    made.attributes = parse_arguments(*made.op, text);
  }
}

}  // namespace tessera
