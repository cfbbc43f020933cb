module;
#include <fmt/format.h>
#include <toml++/toml.h>

#include <cmath>
#include <sstream>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
module tessera.app.plan;

import tessera.base;
import tessera.options;
import tessera.app.base;

namespace tessera::app {
namespace {

constexpr double gib = 1 << 30;
constexpr double giga = 1e9;
constexpr double tera = 1e12;
constexpr double micro = 1e-6;

bool is_positive(double value) { return value > 0 && std::isfinite(value); }
bool is_not_negative(double value) { return value >= 0 && std::isfinite(value); }

/// Reads the tables of a hardware file.
class HardwareReader {
 public:
  HardwareReader(const std::string& json, const std::string& file) : all_(json, file) {}

  Hardware read() {
    Hardware hardware;
    hardware.name = all_.text("name", "");
    if (hardware.name.empty()) {
      all_.refuse("the key 'name' is missing (expected what the machine is called)");
    }
    hardware.source = all_.text("source", "");
    hardware.ranks = static_cast<int>(all_.integer("ranks", 1));
    if (hardware.ranks < 1) {
      all_.refuse("'ranks', those of one machine, must be at least 1");
    }
    hardware.memory = gib * all_.number("memory_gib", 0, "at least 0", is_not_negative);
    hardware.price = all_.number("price_per_hour", 0, "at least 0", is_not_negative);
    hardware.overlaps = all_.flag("overlaps", true);
    PluginOptions rates = all_.table("rates");
    hardware.rates = {.products_of_words = tera * positive(rates, "products_32_tflops"),
                      .products = tera * positive(rates, "products_16_tflops"),
                      .products_of_bytes = tera * positive(rates, "products_8_tflops"),
                      .attention = tera * positive(rates, "attention_tflops"),
                      .bandwidth = giga * positive(rates, "memory_gb"),
                      .launch = micro * positive(rates, "launch_us"),
                      .host = giga * rates.number("host_gb", 0, "at least 0", is_not_negative)};
    hardware.inside = link("inside");
    hardware.between = link("between");
    hardware.failures = failures();
    all_.finish();
    return hardware;
  }

 private:
  /// A number that has no default.
  static double positive(PluginOptions& from, const std::string& name) {
    const std::optional<double> value = from.optional_number(name, "greater than 0", is_positive);
    if (!value) {
      from.refuse(fmt::format("the key '{}' is missing (expected a number greater than 0)", name));
    }
    return *value;
  }

  HardwareLink link(const std::string& name) {
    PluginOptions from = all_.table(name);
    return {.latency = micro * from.number("latency_us", 0, "at least 0", is_not_negative),
            .bandwidth = giga * positive(from, "bandwidth_gb"),
            .sums = giga * from.number("sums_gb", 0, "at least 0", is_not_negative)};
  }

  /// A table that may be missing.
  HardwareFailures failures() {
    PluginOptions from = all_.table("failures");
    const auto number = [&](const char* name) {
      return from.number(name, 0, "at least 0", is_not_negative);
    };
    return {.per_rank_year = number("per_rank_year"),
            .write = giga * number("write_gb"),
            .read = giga * number("read_gb"),
            .restart = number("restart_s")};
  }

  PluginOptions all_;
};

}  // namespace

Hardware read_hardware(const std::string& file) {
  const std::string text = read_input(file);
  std::ostringstream json;
  try {
    json << toml::json_formatter(toml::parse(text, file));
  } catch (const toml::parse_error& error) {
    fail_input({.where = fmt::format("{}:{}", file, error.source().begin.line),
                .wrong = fmt::format("not TOML: {}", error.description())});
  }
  return HardwareReader(json.str(), file).read();
}

double copy_seconds(const Hardware& hardware, double bytes) {
  const double here = 2 * bytes / hardware.rates.bandwidth;  // read and written
  return hardware.rates.host > 0 ? bytes / hardware.rates.host : here;
}

std::string hardware_text(const Hardware& hardware) {
  const DeviceRates& rates = hardware.rates;
  const auto quoted = [](std::string_view text) {
    std::ostringstream out;
    out << toml::value<std::string>(std::string(text));
    return out.str();
  };
  const auto link = [](const char* name, const HardwareLink& link) {
    return fmt::format(
        "\n[{}]\nlatency_us = {:.4g}\nbandwidth_gb = {:#.4g}\n{}", name, link.latency / micro,
        link.bandwidth / giga,
        link.sums > 0 ? fmt::format("sums_gb = {:#.4g}\n", link.sums / giga) : std::string());
  };
  const HardwareFailures& failing = hardware.failures;
  const std::string failures =
      failing.write <= 0 && failing.per_rank_year <= 0
          ? std::string()
          : fmt::format(
                "\n[failures]\nper_rank_year = {:.4g}\nwrite_gb = {:.4g}\nread_gb = {:.4g}\n"
                "restart_s = {:.4g}\n",
                failing.per_rank_year, failing.write / giga, failing.read / giga, failing.restart);
  return fmt::format(
      "name = {}\nsource = {}\nranks = {}    # of a machine\nmemory_gib = {:#.4g}    # of a "
      "rank\nprice_per_hour = {:#.4g}    # of a rank\noverlaps = {}\n\n[rates]\n"
      "products_32_tflops = {:#.4g}\nproducts_16_tflops = {:#.4g}\nproducts_8_tflops = {:#.4g}\n"
      "attention_tflops = {:#.4g}\nmemory_gb = {:#.4g}\nlaunch_us = {:#.4g}\n{}{}{}{}",
      quoted(hardware.name), quoted(hardware.source), hardware.ranks, hardware.memory / gib,
      hardware.price, hardware.overlaps, rates.products_of_words / tera, rates.products / tera,
      rates.products_of_bytes / tera, rates.attention / tera, rates.bandwidth / giga,
      rates.launch / micro,
      rates.host > 0 ? fmt::format("host_gb = {:#.4g}\n", rates.host / giga) : std::string(),
      link("inside", hardware.inside), link("between", hardware.between), failures);
}

}  // namespace tessera::app
