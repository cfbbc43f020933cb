module;
#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.grammar;

namespace tessera::text {

grammar::Grammar tool_call_grammar(const ToolCallForm& form, std::span<const Tool> tools,
                                   bool several, const std::string& place) {
  using namespace grammar;  // NOLINT(google-build-using-namespace)
  Grammar all;
  const std::size_t root = all.add();
  const std::size_t blank = all.add(repeat(characters({{' ', ' '}, {'\n', '\n'}}), 0, 2));
  std::vector<Expression> calls;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Tool& tool = tools[i];
    Expression arguments =
        tool.parameters.empty()
            ? add_json_object(all)
            : add_json_schema(all, tool.parameters,
                              fmt::format("{}.{}.function.parameters", place, i));
    if (form.between.empty()) {
      calls.push_back(
          sequence({bytes(fmt::format("{{\"{}\": {}, \"{}\": ", form.name,
                                      json_text(nlohmann::json(tool.name)), form.arguments)),
                    std::move(arguments), bytes("}")}));
    } else {
      calls.push_back(sequence({bytes(form.call + tool.name + form.between), rule(blank),
                                std::move(arguments), rule(blank), bytes(form.call_end)}));
    }
  }
  const Expression one = rule(all.add(choice(std::move(calls))));
  const Expression more =
      several ? repeat(sequence({bytes(form.in_list ? ", " : ""), one}), 0) : bytes("");
  // In a list or a section of named calls, several follow each other; else sections do.
  const bool within = form.in_list || !form.call.empty();
  const Expression inner = within ? sequence({one, more}) : one;
  const Expression section =
      sequence({bytes(form.begin), rule(blank), bytes(form.in_list ? "[" : ""), inner,
                bytes(form.in_list ? "]" : ""), form.end.empty() ? bytes("") : rule(blank),
                bytes(form.end)});
  all.rules[root] = several && !within && !form.begin.empty()
                        ? sequence({section, repeat(sequence({rule(blank), section}), 0)})
                        : section;
  return all;
}

}  // namespace tessera::text
