// The text of programs: read back exactly, and errors with line numbers where it is damaged.
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.program;

using namespace tessera;

namespace {

const std::string good =
    "tessera program 2\n"
    "rank 0\n"
    "number lr\n"
    "count step\n"
    "stream default draws 8\n"
    "guard stage = 0.1\n"
    "input %0: f32[2, 3] = x\n"
    "input parameter %1: bf16[] = parameter.w\n"
    "section gradients\n"
    "  %2: f32[2, 3] = exp(%0)\n"
    "  %3: f32[2] = memory.values(inf, -0.25)\n"
    "  %4: f32[3, 2] = transpose(%2; dim0=0, dim1=1)\n"
    "  %5: f32[2, 3] = memory.alias(%4; strides=[3, 1], offset=0)\n"
    "  memory.release(%5)\n"
    "  memory.restore(%5)\n"
    "  %6: f32[2, 3] = mul_scalar(%2; value=0.3333333333333333) {value=$lr}\n"
    "  host.check(%3; inf, -0.25)\n"
    "section update\n"
    "  all_reduce_(%6; op=sum, group=ranks 0 named a group)\n"
    "output %6 = y\n"
    "end\n";

std::string parse_error(const std::string& text) {
  try {
    Program::parse(text, "step.txt");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::input);
    return error.what();
  }
  return "no error";
}

std::string replaced(const std::string& what, const std::string& by) {
  std::string text = good;
  const std::size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), by);
}

}  // namespace

TEST_CASE("a text is read back exactly") {
  CHECK(Program::parse(good).to_text() == good);
  const std::string updates = replaced("section gr", "optimizer 1 updates parameter.w\nsection gr");
  CHECK(Program::parse(updates).to_text() == updates);
  const std::string gradient = replaced("end\n", "gradient of parameter.w = y\nend\n");
  CHECK(Program::parse(gradient).to_text() == gradient);
}

TEST_CASE("groups at equal distances are written by their ends, and others as a list") {
  const auto rewritten = [](const std::string& ranks) {
    const std::string text =
        Program::parse(replaced("group=ranks 0 named", "group=" + ranks + " named")).to_text();
    const std::size_t at = text.find("group=") + 6;
    return text.substr(at, text.find(" named", at) - at);
  };
  CHECK(rewritten("ranks 0 1 2 3 4 5 6 7") == "ranks 0 1 2 3 4 5 6 7");
  CHECK(rewritten("ranks 0 1 2 3 4 5 6 7 8") == "ranks 0 to 8");
  CHECK(rewritten("ranks 3 5 7 9 11 13 15 17 19") == "ranks 3 to 19 by 2");
  CHECK(rewritten("ranks 0 to 16376 by 8") == "ranks 0 to 16376 by 8");
  CHECK(rewritten("ranks 0 to 6 by 2") == "ranks 0 2 4 6");
  CHECK(rewritten("ranks 8 7 6 5 4 3 2 1 0") == "ranks 8 7 6 5 4 3 2 1 0");
  CHECK(rewritten("terms 1 to 2 of ranks 0 to 9") == "terms 1 to 2 of ranks 0 to 9");
  CHECK(rewritten("terms 0 to 2 of ranks 0 1 2") == "ranks 0 1 2");  // all of them
  for (const std::string wrong :
       {"terms 1 to 3 of ranks 0 1 2", "terms 1 to 0 of ranks 0 1 2", "terms -1 to 0 of ranks 0 1",
        "terms 0 of ranks 0 1", "terms 0 to 0 of terms 0 to 1 of ranks 0 1 2", "terms 0 to 0",
        "ranks 0 to", "ranks 0 to 7 by 2", "ranks 0 to 8 by 0", "ranks 5 to 2", "ranks 0 1 to 3",
        "ranks 0 to 8 with 2", "ranks 0 to 8 by 2 more", "ranks 0 to 2000000000"}) {
    INFO(wrong);
    CHECK(parse_error(replaced("group=ranks 0 named", "group=" + wrong + " named"))
              .find("a value of type group (\"ranks 0 1 2\"") != std::string::npos);
  }
}

TEST_CASE("a text that is cut anywhere is refused with the line") {
  int line = 1;
  for (std::size_t cut = 0; cut + 1 < good.size(); ++cut) {
    const std::string error = parse_error(good.substr(0, cut));
    INFO(good.substr(0, cut));
    CHECK(error.starts_with("step.txt, line " + std::to_string(line) + ": "));
    line += good[cut] == '\n' ? 1 : 0;
  }
}

namespace {

std::string on_mesh(const std::string& layout) {
  return "tessera program 2\nrank 0\nmesh(data=2)\ninput %0: f32[4, 2] " + layout + " = x\nend\n";
}

}  // namespace

TEST_CASE("damaged and foreign texts are refused: what is wrong, and where") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {parse_error("{\"a\": 1}\n"),
       "step.txt, line 1: this is not a program (expected 'tessera program 2', got '{\"a\": 1}')"},
      {parse_error(replaced("program 2", "program 1")),
       "step.txt, line 1: the program has another version of the format (expected version 2, got "
       "version 1); record the step again with this Tessera"},
      {parse_error(good.substr(0, good.size() - 1)),
       "step.txt, line 21: the line is cut (expected the end of a line, got the end of the text "
       "after 'end'); the file is not whole: write it again"},
      {parse_error(replaced("group=ranks 0 named", "group=ranks 0 0 named")),
       "step.txt, line 19: all_reduce_: a value of type group (ranks from 0, each once) is "
       "expected "
       "(got 'ranks 0 0 named a group')"},
      {parse_error(replaced("group=ranks 0 named", "group=ranks 1 -1 named")),
       "step.txt, line 19: all_reduce_: a value of type group (ranks from 0, each once) is "
       "expected "
       "(got 'ranks 1 -1 named a group')"},
      {parse_error(good + "more\n"), "step.txt, line 22: there is text after 'end'"},
      {parse_error(replaced("rank 0", "ramk 0")),
       "step.txt, line 2: the line is wrong (expected rank, level, mesh, number, count, stream, "
       "guard, input, optimizer, section, output, gradient or end, got 'ramk 0')"},
      {parse_error(replaced("input parameter", "input weight")),
       "step.txt, line 8: the line is wrong (expected '%', or a role such as parameter, buffer or "
       "rows, got 'weight %1: bf16[] = parameter.w')"},
      {parse_error(replaced("input parameter", "input rows")),
       "step.txt, line 8: the line is wrong (expected a number, got '%1: bf16[] = parameter.w')"},
      {parse_error(replaced("section update", "section last")),
       "step.txt, line 18: the line is wrong (expected the section step, gradients, free, update "
       "or "
       "evaluation, got 'last')"},
      {parse_error(replaced("exp(%0)", "exp(%0) @ foreward")),
       "step.txt, line 10: there is no such phase (expected '-', or a phase such as forward, "
       "backward or optimizer, got 'foreward')"},
      {parse_error(replaced("section ", "optimizer 0 updates y\nsection ")),
       "step.txt, line 9: there is no such optimizer or input (expected 0 or more, and an input "
       "that "
       "is above, got 0 and 'y')"},
      {parse_error(replaced("f32[2, 3] = x", "f32[2, 3] [Shard(0)] = x")),
       "step.txt, line 7: mesh 0 is not declared above"},
      {parse_error(replaced("rank 0", "mesh(data)")),
       "step.txt, line 2: mesh: 'mesh(data)' is not a mesh (expected the form \"mesh(shard=2, "
       "tensor=2)\", with \" of ranks 4 5 6 7\" after it where they are not 0, 1, ...)"},
      {parse_error(on_mesh("[Shard(2)]")),
       "step.txt, line 4: the layout: layout [Shard(2)] shards dim 2 of a tensor with 2 dims; "
       "shard a "
       "dim that it has"},
      {parse_error(on_mesh("[Shard(0), Replicate]")),
       "step.txt, line 4: layout: 2 placements for 1 axes (got [Shard(0), Replicate], "
       "mesh(data=2)); "
       "give one for each axis"},
      {parse_error(on_mesh("[Shard(0)] on 1")), "step.txt, line 4: mesh 1 is not declared above"},
      {parse_error(replaced("f32[2, 3] = x", "f31[2, 3] = x")),
       "step.txt, line 7: %0 has a type that does not exist"},
      {parse_error(replaced("parameter %1", "parameter %0")),
       "step.txt, line 8: %0 is defined above"},
      {parse_error(replaced("%2: f32", "%999999: f32")),
       "step.txt, line 10: %999999 is out of range (expected 0 to 66879 in a text of this length)"},
      {parse_error(replaced("exp(%0)", "exp(%9)")), "step.txt, line 10: %9 is not defined above"},
      {parse_error(replaced("exp(%0)", "no_such_operator(%0)")),
       "step.txt, line 10: find_op: no operator is called 'no_such_operator'"},
      {parse_error(replaced("exp(%0)", "exp(%0")),
       "step.txt, line 10: the line is cut (expected ')' at its end, got '%0')"},
      {parse_error(replaced("values(inf, -0.25)", "values(inf)")),
       "step.txt, line 11: memory.values has the wrong number of values (expected 2)"},
      {parse_error(replaced("dim0=0, dim1=1", "dim0=0")),
       "step.txt, line 12: transpose: argument 'dim1' (int) is missing; add it"},
      {parse_error(replaced("strides=[3, 1]", "strides=[3, -1]")),
       "step.txt, line 13: a stride is negative (expected 0 or more)"},
      {parse_error(replaced("exp(%0)", "exp()")),
       "step.txt, line 10: exp: wrong number of operands (expected 1, got 0); the schema is "
       "exp(x)"},
      {parse_error(replaced("exp(%0)", "exp(-)")),
       "step.txt, line 10: exp: operand 'x' is an undefined tensor "
       "(expected a tensor; only operands marked '?' may be absent: exp(x))"},
      {parse_error(replaced("strides=[3, 1]", "strides=[3]")),
       "step.txt, line 13: memory.alias has the wrong number of values (expected 2)"},
      {parse_error(replaced("=$lr", "=$rate")),
       "step.txt, line 16: the variable 'rate' is not declared above"},
      {parse_error(replaced("{value=", "{valve=")),
       "step.txt, line 16: there is no argument 'valve' to follow a variable"},
      {parse_error(replaced("value=0.3333333333333333", "value=x")),
       "step.txt, line 16: mul_scalar: a value of type float is expected (got 'x')"},
      {parse_error(replaced("output %6", "output %7")),
       "step.txt, line 20: %7 is not defined above"},
  };
  for (const auto& [got, expected] : cases) {
    CHECK(got == expected);
  }
}
