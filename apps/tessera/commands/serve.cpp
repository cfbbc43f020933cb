module;
#include <fmt/format.h>

#include <cstdio>
#include <string>
module tessera.app.commands;

import tessera.base;
import tessera.stores;
import tessera.coded;
import tessera.hub;
import tessera.text;
import tessera.app.server;
import :stored_paths;
import :subcommands;
import :text_commands;

namespace tessera::app {
namespace {

/// Error (input): an option that an encoder does not have.
void check_encoder(const ServeArguments& arguments) {
  const bool plain = arguments.precision == coded::WeightForm::stored &&
                     arguments.activations == coded::Activations::f32 && !arguments.keys &&
                     arguments.adapter.empty() && arguments.tokenizer.empty() &&
                     arguments.base.empty() && !arguments.options.adapters.used();
  if (!plain || arguments.ranks > 1 || arguments.context > 1 || arguments.heals ||
      arguments.options.page) {
    fail_input({.thing = arguments.model,
                .wrong = "an encoder is served as its folder is, on one rank",
                .advice =
                    "leave out --adapter, --adapter-folder, --tokenizer, --base, "
                    "--precision, --activations, --keys, --ranks, --context, --heal and --page"});
  }
}

}  // namespace

int run_serve(const ServeArguments& given) {
  ServeArguments arguments = given;
  const stores::LocalInput local(arguments.model, {.choose = hub::leave_out_other_formats});
  arguments.model = local.path();
  ServeOptions options = arguments.options;
  InputCopies copies;
  copies.take(options.chat_template);
  for (auto& [name, folder] : options.adapters.named) {
    copies.take(folder, true);
  }
  if (!arguments.token_file.empty()) {
    options.token = read_token(arguments.token_file);
  }
  const auto started = [&](int port) {
    const bool bare = options.host.find(':') != std::string::npos && !options.host.starts_with('[');
    fmt::print("listening at http://{}{}{}:{}/v1\n", bare ? "[" : "", options.host, bare ? "]" : "",
               port);
    std::fflush(stdout);
  };
  if (is_encoder(arguments.model)) {
    check_encoder(arguments);
    serve_encoder(arguments.model, options, started);
    return 0;
  }
  const auto lead = [&](const text::TextModel& model) {
    serve(model, options, started);
    return 0;
  };
  const int code = use_model(arguments, lead, options.adapters.used(), arguments.heals);
  // An interrupt is how a server ends, also one that had to end its ranks within a pass.
  return code == exit_code_of(ErrorKind::interrupted) ? 0 : code;
}

}  // namespace tessera::app
