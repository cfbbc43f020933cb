module tessera.train:step_inputs;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.optim;

namespace tessera {

/// State that transformations add (graph::Editor::state).
inline constexpr const char* added_prefix = "transform.";

/// Inputs that are parameters have names that begin so.
inline constexpr std::string_view parameter_prefix = "parameter.";
/// And state of optimizers.
inline constexpr std::string_view state_prefix = "optimizer.";

// What exists before a step, by the names that it has as inputs of a program: "parameter.NAME",
// "gradient.NAME" where gradients are kept in another place, "buffer.NAME", "optimizer.NAME".

/// `name`: of the parameter, which may have a prefix.
std::string parameter_input(const std::string& name);
std::string input_of(const nn::ParameterPointer& parameter);
void add_parameter(std::map<std::string, Tensor>& all, const std::string& name,
                   nn::Parameter& parameter);
void add_buffer(std::map<std::string, Tensor>& all, const std::string& name,
                const nn::Buffer& buffer);
/// `prefix`: before the names of its state.
void add_state(std::map<std::string, Tensor>& all, const std::string& prefix,
               const optim::Optimizer& optimizer);
/// What the memory of this input counts as where it is booked on nothing.
MemoryCategory category_of_parameter(const nn::Parameter& parameter);

}  // namespace tessera
