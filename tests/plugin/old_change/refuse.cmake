# A plugin as it was written before the kind "change": refused when it is configured, with the lines to change.
include(${HELPER})
tessera_add_plugin(MeanLoss SOURCES old.cpp KIND transform DESCRIPTION "Keeps a mean of the loss")
