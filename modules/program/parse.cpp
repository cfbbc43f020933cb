// A program from its text.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.device;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import :expression;
import :line;
import :parse_arguments;

namespace tessera {
namespace {

using Kind = Instruction::Kind;

class Parser {
 public:
  /// Passes remove tensors and leave numbers, of which a program has many more than lines then.
  explicit Parser(std::string_view text)
      : most_(static_cast<int>(
            std::min<std::ptrdiff_t>(1 << 24, (1 << 16) + 64 * std::ranges::count(text, '\n')))) {}

  void header(Line& line) {
    if (line.take("level above distribution")) {
      program.level = ModeLevel::above_distribution;
    } else if (line.rest().starts_with("mesh(")) {
      program.meshes.push_back(DeviceMesh::parse(line.all()));
    } else if (line.take("rank ")) {
      program.rank = line.number<int>();
      if (program.rank < 0) {
        fail_input({.wrong = "there is no such rank",
                    .expected = "0 or more",
                    .got = fmt::format("{}", program.rank)});
      }
    } else if (line.take("number ")) {
      program.numbers.emplace_back(line.all());
    } else if (line.take("count ")) {
      program.counts.emplace_back(line.all());
    } else if (line.take("stream ")) {
      const std::string name(line.until(" draws "));
      program.draws[name] = line.number<std::uint64_t>();
    } else if (line.take("guard ")) {
      const std::string name(line.until(" = "));
      program.guards[name] = line.number<double>();
    } else if (line.take("input ")) {
      ProgramInput input = role(line);
      input.tensor = definition(line);
      line.expect(" = ");
      if (!program.inputs.emplace(std::string(line.all()), input).second) {
        fail_input("an input of this name is above");
      }
    } else if (line.take("optimizer ")) {
      ProgramUpdate update{.optimizer = line.number<int>()};
      line.expect(" updates ");
      update.input = std::string(line.all());
      if (update.optimizer < 0 || !program.inputs.contains(update.input)) {
        fail_input({.wrong = "there is no such optimizer or input",
                    .expected = "0 or more, and an input that is above",
                    .got = fmt::format("{} and '{}'", update.optimizer, update.input)});
      }
      program.updates.push_back(std::move(update));
    } else if (line.take("section ")) {
      const auto kind = section_kind_named(line.rest());
      if (!kind) {
        line.refuse("the section step, gradients, free, update or evaluation");
      }
      program.sections.push_back({.kind = *kind});
      line.all();
    } else if (line.take("output ")) {
      const TensorIndex tensor = use(line);
      line.expect(" = ");
      program.outputs[std::string(line.all())] = tensor;
    } else if (line.take("gradient of ")) {
      const std::string input(line.until(" = "));
      program.gradients[std::string(line.all())] = input;
    } else {
      line.refuse(
          "rank, level, mesh, number, count, stream, guard, input, optimizer, section, output, "
          "gradient or end");
    }
    line.end();
  }

  void instruction(Line& line) {
    if (program.sections.empty()) {
      fail_input("an instruction before the first section");
    }
    Instruction made;
    std::vector<std::string_view> bindings;
    const std::string_view whole = line.rest();
    // Results are defined after the operands were looked at: none of them is its own operand.
    const std::size_t equals = whole.starts_with('%') || whole.starts_with("-")
                                   ? whole.find(" = ")
                                   : std::string_view::npos;
    Line results(equals == std::string_view::npos ? std::string_view() : whole.substr(0, equals));
    if (equals != std::string_view::npos) {
      line.until(" = ");
    }
    const std::string_view name = line.until("(");
    std::string_view body = line.all();
    made.scope = scope(body);
    std::string_view bound;
    if (const std::size_t brace = body.rfind(" {");
        brace != std::string_view::npos && body.ends_with('}')) {
      bound = body.substr(brace + 2, body.size() - brace - 3);
      body = body.substr(0, brace);
    }
    if (!body.ends_with(')')) {
      fail_input({.wrong = "the line is cut",
                  .expected = "')' at its end",
                  .got = fmt::format(
                      "'{}'", body.substr(body.size() - std::min<std::size_t>(body.size(), 40)))});
    }
    body.remove_suffix(1);
    if (name == "memory.full" || name == "memory.values" || name == "memory.empty") {
      made.kind = name == "memory.full"     ? Kind::full
                  : name == "memory.values" ? Kind::values
                                            : Kind::empty;
      made.values = parse_numbers(body);
    } else {
      const std::size_t semicolon = body.find("; ");
      Line operands(body.substr(0, semicolon));
      while (!operands.ended()) {
        made.in.push_back(operands.take("-") ? TensorIndex() : use(operands));
        if (!operands.ended()) {
          operands.expect(", ");
        }
      }
      parse_arguments_of(
          made, name,
          semicolon == std::string_view::npos ? std::string_view() : body.substr(semicolon + 2));
    }
    check_operands(made);
    bind(made, bound);
    while (!results.ended()) {
      made.out.push_back(results.take("-") ? TensorIndex() : definition(results));
      if (!results.ended()) {
        results.expect(", ");
      }
    }
    check_count(made, name);
    program.sections.back().instructions.push_back(std::move(made));
  }

  Program program;

 private:
  /// The scope at the line's end, which is taken away.
  ScopeIndex scope(std::string_view& body) {
    constexpr std::string_view at_scope = " @ ";
    constexpr std::string_view in = " in ";
    constexpr std::string_view by = " by ";
    constexpr std::string_view during = " during ";
    const std::size_t at = body.rfind(at_scope);
    if (at == std::string_view::npos) {
      return ScopeIndex(0);
    }
    const std::string_view text = body.substr(at + at_scope.size());
    body = body.substr(0, at);
    const std::size_t part = std::min(text.find(during), text.size());
    const std::size_t written = std::min(text.find(by), part);
    const std::size_t module = std::min(text.find(in), written);
    const std::string_view phase = text.substr(0, module);
    const auto known = phase == "-" ? Phase::none : phase_named(phase);
    if (!known || (phase.empty())) {
      fail_input({.wrong = "there is no such phase",
                  .expected = "'-', or a phase such as forward, backward or optimizer",
                  .got = fmt::format("'{}'", phase.substr(0, 40))});
    }
    const auto between = [&](std::size_t begin, std::string_view mark, std::size_t end) {
      const std::size_t first = begin + mark.size();
      return first < end ? std::string(text.substr(first, end - first)) : std::string();
    };
    return program.scope({.phase = *known,
                          .module = between(module, in, written),
                          .operation = between(written, by, part),
                          .part = between(part, during, text.size())});
  }

  /// The role of an input, before its number; none: other.
  static ProgramInput role(Line& line) {
    ProgramInput input;
    if (line.rest().starts_with('%')) {
      return input;
    }
    const std::string_view word = line.rest().substr(0, line.rest().find(' '));
    const auto known = role_named(word);
    if (!known || *known == Role::other) {
      line.refuse("'%', or a role such as parameter, buffer or rows");
    }
    line.expect(word);
    line.expect(" ");
    input.role = *known;
    if (input.role == Role::rows) {
      input.micro_batch = line.number<int>();
      line.expect(" ");
    }
    return input;
  }

  TensorIndex use(Line& line) {
    line.expect("%");
    const int number = line.number<int>();
    if (!defined_.contains(TensorIndex(number))) {
      fail_input(fmt::format("%{} is not defined above", number));
    }
    return TensorIndex(number);
  }

  TensorIndex definition(Line& line) {
    line.expect("%");
    const int number = line.number<int>();
    line.expect(": ");
    const auto dtype = dtype_from_name(line.until("["));
    if (!dtype) {
      fail_input(fmt::format("%{} has a type that does not exist", number));
    }
    ProgramTensor shape{{.shape = {}, .dtype = *dtype}};
    while (!line.take("]")) {
      if (shape.shape.size() > 0) {
        line.expect(", ");
      }
      shape.shape.push_back(line.number<std::int64_t>());
    }
    shape.spec = layout(line, shape);
    shape.category = category(line);
    shape.elsewhere = takes_word(line, "elsewhere");
    if (number < 0 || number >= most_) {
      fail_input({.wrong = fmt::format("%{} is out of range", number),
                  .expected = fmt::format("0 to {} in a text of this length", most_ - 1)});
    }
    const TensorIndex tensor(number);
    if (!defined_.insert(tensor).second) {
      fail_input(fmt::format("%{} is defined above", number));
    }
    if (!program.tensors.contains(tensor)) {
      program.tensors.resize(static_cast<std::size_t>(number) + 1);
    }
    program.tensors[tensor] = shape;
    return tensor;
  }

  /// The layout of a tensor, where the line says it.
  SpecHandle layout(Line& line, const ResultShape& x) const {
    if (!line.take(" [")) {
      return {};
    }
    const std::string placements = fmt::format("[{}]", line.until("]"));
    const int mesh = line.take(" on ") ? line.number<int>() : 0;
    if (mesh < 0 || static_cast<std::size_t>(mesh) >= program.meshes.size()) {
      fail_input(fmt::format("mesh {} is not declared above", mesh));
    }
    const Layout layout = Layout::parse(program.meshes[static_cast<std::size_t>(mesh)], placements);
    check_layout_fits(layout, x.shape.size(), "the layout");
    return Spec::make(layout, x.shape, x.dtype);
  }

  /// Category that memory is booked on, where the line says it.
  static MemoryCategory category(Line& line) {
    for (int i = 0; i < memory_category_count; ++i) {
      const auto one = static_cast<MemoryCategory>(i);
      if (takes_word(line, name_of(one))) {
        return one;
      }
    }
    return MemoryCategory::other;
  }

  /// A word after the shape of a tensor. The name of an input may begin with one.
  static bool takes_word(Line& line, std::string_view word) {
    const std::string text = fmt::format(" {}", word);
    const std::string_view rest = line.rest();
    const std::string_view after = rest.substr(std::min(text.size(), rest.size()));
    const bool takes =
        rest.starts_with(text) && (after.empty() || after.starts_with(" = ") ||
                                   after.starts_with(", %") || after.starts_with(" elsewhere"));
    return takes && line.take(text);
  }

  [[noreturn]] static void undeclared(const std::string& name) {
    fail_input(fmt::format("the variable '{}' is not declared above", name));
  }

  void bind_stream(Binding& binding, Line& line) const {
    const std::string_view rest = line.rest().substr(0, line.rest().find(", "));
    binding.stream = std::string(rest.substr(0, rest.find_last_of("+-")));
    line.expect(binding.stream);
    if (line.take("+") || line.rest().starts_with('-')) {
      binding.offset = line.number<std::int64_t>();
    }
    if (!program.draws.contains(binding.stream)) {
      undeclared(binding.stream);
    }
  }

  void bind(Instruction& made, std::string_view text) const {
    Line line(text);
    while (!line.ended()) {
      Binding binding;
      const std::string_view field = line.until("=$");
      const auto& fields = made.op != nullptr && made.op->arguments != nullptr
                               ? made.op->arguments->fields
                               : std::span<const ArgumentField>();
      const auto found = std::ranges::find(fields, field, &ArgumentField::name);
      if (found == fields.end()) {
        fail_input(fmt::format("there is no argument '{}' to follow a variable", field));
      }
      binding.field = static_cast<int>(found - fields.begin());
      if (found->type == ArgumentType<RandomNumbers>::name) {
        bind_stream(binding, line);
      } else if (found->type == ArgumentType<double>::name ||
                 found->type == ArgumentType<std::int64_t>::name) {
        binding.value = take_expression(line);
        for (const std::string& name : binding.value.variables()) {
          if (!contains(program.numbers, name) && !contains(program.counts, name)) {
            undeclared(name);
          }
        }
      } else {
        fail_input(fmt::format("argument '{}' is no number", field));
      }
      made.bindings.push_back(std::move(binding));
      if (!line.ended()) {
        line.expect(", ");
      }
    }
  }

  /// Error: the operator takes another number of operands, or none that are absent.
  static void check_operands(const Instruction& made) {
    if (made.kind == Kind::call) {
      const Tensor any = empty({}, DType::f32, meta);
      std::vector<Tensor> operands;
      for (const TensorIndex number : made.in) {
        operands.push_back(number.exists() ? any : Tensor());
      }
      check_call(*made.op, operands, made.attributes);
    }
  }

  void check_count(const Instruction& made, std::string_view name) const {
    const auto shape = [&](TensorIndex tensor) { return program.tensors[tensor].shape; };
    const bool makes =
        made.kind != Kind::release && made.kind != Kind::restore && made.kind != Kind::check;
    const bool takes =
        made.kind != Kind::empty && made.kind != Kind::full && made.kind != Kind::values;
    if (made.kind != Kind::call &&
        (made.out.size() != (makes ? 1 : 0) || made.in.size() != (takes ? 1 : 0) ||
         std::ranges::find(made.in, TensorIndex()) != made.in.end())) {
      fail_input(
          {.wrong = fmt::format("{} has the wrong number of tensors", name),
           .expected = fmt::format("{} operands and {} results", takes ? 1 : 0, makes ? 1 : 0)});
    }
    const std::int64_t count = made.kind == Kind::full     ? 1
                               : made.kind == Kind::values ? shape(made.out[0]).product()
                               : made.kind == Kind::check  ? shape(made.in[0]).product()
                                                           : 0;
    if (static_cast<std::int64_t>(made.values.size()) != count ||
        (made.kind == Kind::alias && made.strides.size() != shape(made.out[0]).size())) {
      fail_input({.wrong = fmt::format("{} has the wrong number of values", name),
                  .expected = fmt::format(
                      "{}", made.kind == Kind::alias ? shape(made.out[0]).size() : count)});
    }
  }

  static bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  }

  std::set<TensorIndex> defined_;
  int most_;  // tensors: each number has an entry, so a damaged one must not need much memory
};

}  // namespace

Program Program::parse(std::string_view text, const std::string& where) {
  Parser parser(text);
  bool ended = false;
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    Line line(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    try {
      if (end == std::string_view::npos) {
        fail_input({.wrong = "the line is cut",
                    .expected = "the end of a line",
                    .got = fmt::format("the end of the text after '{}'", line.rest().substr(0, 40)),
                    .advice = "the file is not whole: write it again"});
      }
      if (ended) {
        fail_input("there is text after 'end'");
      }
      if (number == 1) {
        line.check_version();
      } else if (line.rest() == "end") {
        ended = true;
      } else if (line.take("  ")) {
        parser.instruction(line);
      } else {
        parser.header(line);
      }
    } catch (const Error& error) {
      ErrorFields fields = error.fields();
      fields.where = fmt::format("{}, line {}{}{}", where, number, fields.where.empty() ? "" : ": ",
                                 fields.where);
      fail_input(std::move(fields));
    }
  }
  if (!ended) {
    fail_input({.where = fmt::format("{}, line {}", where, number + 1),
                .wrong = "the text is cut",
                .expected = "'end'",
                .advice = "record the step again"});
  }
  return std::move(parser.program);
}

}  // namespace tessera
