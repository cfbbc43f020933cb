module;
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <tessera/printable.hpp>
#include <utility>
module tessera.runs;

import tessera.base;
import tessera.collective;

namespace tessera::runs {
namespace {

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// mpirun gives its ranks a terminal, whatever its own output is.
bool is_terminal(const collective::MachineOptions& machine) {
  const char* term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && !collective::launched_by_other(machine) &&
         (term == nullptr || std::string_view(term) != "dumb");
}

}  // namespace

std::optional<double> reliable_share(double share) {
  return share > 1 ? std::nullopt : std::optional(share);
}

std::string format_progress(const ProgressLine& line) {
  const StepMetrics& m = line.metrics;
  const auto digits = fmt::formatted_size("{}", line.steps);
  std::string text = fmt::format("step {:>{}}/{}  loss {:.4f}  grad {:.3g}  {} tokens/s", m.step,
                                 digits, line.steps, printable(m.loss), printable(m.grad_norm),
                                 format_count(m.tokens_per_second));
  if (m.skipped) {
    text += "  skipped";
  }
  for (const auto& [name, value] : m.measures) {
    if (name == "experts/largest") {
      text += fmt::format("  busiest expert {:.2f}x", value);
    } else if (name == "experts/dropped") {
      text += fmt::format("  dropped {:.1f}%", value * 100);
    }
  }
  if (line.gemm_share) {
    text += fmt::format("  {:.0f}% of GEMM", printable(*line.gemm_share * 100));
  }
  text += fmt::format("  {}", format_bytes(m.memory_bytes));
  if (m.validation_loss) {
    text += fmt::format("  validation {:.4f}", printable(*m.validation_loss));
  }
  return text + fmt::format("  {} left", format_duration(line.seconds_left));
}

std::string fit_line(const std::string& line, int columns) {
  return line.substr(0, static_cast<std::size_t>(columns > 0 ? columns : 0));
}

ProgressOutput progress_on_stdout(const collective::MachineOptions& machine) {
  ProgressOutput out{.write = [](const std::string& text) { print_progress(text); }};
  if (is_terminal(machine)) {
    out.columns = terminal_columns;
  }
  return out;
}

Progress::Progress(std::int64_t first, std::int64_t steps, std::int64_t every, ProgressOutput out)
    : first_(first), steps_(steps), every_(every), out_(std::move(out)) {}

Progress::~Progress() { finish(); }

void Progress::write_live(const std::string& text) {
  // One column stays free: some terminals wrap when the last column is written.
  out_.write("\r\x1b[K" + text + fit_line(shown_, out_.columns() - 1));
}

void Progress::step(const StepMetrics& metrics, std::optional<double> gemm_share) {
  // The first step also pays for caches and first touches: the second one replaces it.
  const bool settling = ++shown_steps_ <= 2;
  seconds_per_step_ = settling ? metrics.seconds : 0.9 * seconds_per_step_ + 0.1 * metrics.seconds;
  if (shares_ && gemm_share && !reliable_share(*gemm_share)) {
    shares_ = false;
    note(
        "the GEMM ceiling, measured at the start, is below what this step reached: the machine "
        "was busy then, and no share of it is shown");
  }
  const ProgressLine line{metrics, steps_, shares_ ? gemm_share : std::nullopt,
                          seconds_per_step_ * static_cast<double>(steps_ - metrics.step)};
  const std::string text = format_progress(line);
  if (out_.columns) {
    shown_ = text;
    write_live("");
    line_open_ = true;
    if (metrics.validation_loss) {
      finish();  // worth keeping on the screen
    }
  } else if (metrics.step % every_ == 0 || metrics.step == first_ + 1 || metrics.step == steps_ ||
             metrics.validation_loss) {
    out_.write(text + "\n");
  }
}

void Progress::note(const std::string& text) {
  if (!line_open_) {
    out_.write(text + "\n");
    return;
  }
  write_live(text + "\n");
}

void Progress::finish() {
  if (line_open_) {
    out_.write("\n");
    line_open_ = false;
  }
}

}  // namespace tessera::runs
