module tessera.app.commands:text_commands;

import tessera.tensor;
import tessera.coded;
import tessera.app.base;
import tessera.text;
import :subcommands;

// The command lines of what is done with a trained model: `tessera generate`, `tessera chat`.

extern "C++" {  // not of this module
namespace CLI {
class App;
}
}

namespace tessera::app {

/// Adds the commands to the program; each sets `chosen` to what it does.
void add_text_commands(CLI::App& program, std::function<int()>& chosen);

/// The files of the model that a command names.
text::ModelFiles model_files(const ModelArguments& arguments);

/// Adds the options for the form of weights, keys and values.
void add_precision(CLI::App& command, coded::WeightForm& weights, coded::Activations& activations,
                   std::optional<DType>& keys);

/// Calls `act` with the model that a command names, on its ranks (with_text_model). `adapters`: see
/// text::ModelFiles. `heals`: see with_text_model. Errors (input): copies that the ranks do not
/// make; those of with_text_model.
int use_model(const ModelArguments& arguments,
              const std::function<int(const text::TextModel&)>& act, bool adapters = false,
              bool heals = false);

/// Says on stderr why texts are made slowly (text::Decoding::slow_because); nothing where they are
/// not.
void note_slow(const std::string& because);

}  // namespace tessera::app
