#include "lanes.hpp"
#include "optimizer/functions/adadelta.hpp"
#include "optimizer/functions/adagrad.hpp"
#include "optimizer/functions/adam.hpp"
#include "optimizer/functions/adamax.hpp"
#include "optimizer/functions/asgd.hpp"
#include "optimizer/functions/lion.hpp"
#include "optimizer/functions/nadam.hpp"
#include "optimizer/functions/radam.hpp"
#include "optimizer/functions/rmsprop.hpp"
#include "optimizer/functions/rprop.hpp"
#include "optimizer/functions/sgd.hpp"

namespace tessera::kernels {

template decltype(update<functions::Adadelta>) update<functions::Adadelta>;
template decltype(update<functions::Adagrad>) update<functions::Adagrad>;
template decltype(update<functions::Adam>) update<functions::Adam>;
template decltype(update<functions::Adamax>) update<functions::Adamax>;
template decltype(update<functions::Asgd>) update<functions::Asgd>;
template decltype(update<functions::Lion>) update<functions::Lion>;
template decltype(update<functions::NAdam>) update<functions::NAdam>;
template decltype(update<functions::RAdam>) update<functions::RAdam>;
template decltype(update<functions::RMSprop>) update<functions::RMSprop>;
template decltype(update<functions::Rprop>) update<functions::Rprop>;
template decltype(update<functions::Sgd>) update<functions::Sgd>;

}  // namespace tessera::kernels
