module tessera.program:parse_arguments;

import tessera.base;
import :expression;
import :line;
import :instructions;

namespace tessera {

/// The expression that the line begins with. Error (input): it begins with none.
Expression take_expression(Line& line);
/// Numbers with commas between them.
std::vector<double> parse_numbers(std::string_view text);
/// Sets what an instruction is by its name in a program's text, and what is in its parentheses
/// after its operands. Errors (input): there is no such operator; arguments that it does not have.
void parse_arguments_of(Instruction& made, std::string_view name, std::string_view text);

}  // namespace tessera
