#include "property.hpp"

#include <cstdlib>
#include <sstream>

#include "catch.hpp"

namespace tessera::testing {
namespace {

class Silent final : public rc::detail::TestListener {
 public:
  void onTestCaseFinished(const rc::detail::CaseDescription& /*description*/) override {}
  void onShrinkTried(const rc::detail::CaseDescription& /*shrink*/, bool /*accepted*/) override {}
  void onTestFinished(const rc::detail::TestMetadata& /*metadata*/,
                      const rc::detail::TestResult& /*result*/) override {}
};

rc::detail::TestParams params_of(int inputs) {
  if (std::getenv("RC_PARAMS") != nullptr) {
    return rc::detail::configuration().testParams;
  }
  rc::detail::TestParams params;
  params.seed = 1;
  params.maxSuccess = inputs;
  return params;
}

}  // namespace

void check_property(const std::string& description, int inputs,
                    const rc::detail::Property& property) {
  Silent silent;
  const rc::detail::TestResult result =
      rc::detail::checkProperty(property, {}, params_of(inputs), silent, {});
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  INFO(description << ": " << text.str());
  CHECK(result.is<rc::detail::SuccessResult>());
}

}  // namespace tessera::testing
