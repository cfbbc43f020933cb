module;
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
module tessera.app.run;

import tessera.base;
import tessera.collective;

namespace tessera::app {

std::string text_of_ranks(const collective::LaunchOptions& options,
                          const std::function<std::string(collective::World&)>& run) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
  if (!file) {
    fail({.thing = "launch", .wrong = "no temporary file can be made"});
  }
  const int code = collective::launch(options, [&](collective::World& world) {
    const std::string text = run(world);
    if (world.rank() == 0) {
      std::fwrite(text.data(), 1, text.size(), file.get());
      std::fflush(file.get());
    }
    return 0;
  });
  if (code != 0) {
    const ErrorKind kind = code == exit_code_of(ErrorKind::input)         ? ErrorKind::input
                           : code == exit_code_of(ErrorKind::interrupted) ? ErrorKind::interrupted
                                                                          : ErrorKind::run;
    throw collective::PeerFailed("launch: a rank has failed; its error is printed", kind);
  }
  std::rewind(file.get());
  std::string text;
  std::string part(std::size_t{1} << 16, '\0');
  while (const std::size_t more = std::fread(part.data(), 1, part.size(), file.get())) {
    text.append(part, 0, more);
  }
  return text;
}

}  // namespace tessera::app
