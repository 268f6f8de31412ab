// What the modes of `hadal bench` print.
#pragma once

#include <string>
#include <vector>

#include "text/json_text.h"

namespace hadal::cli {

// The nearest rank; 0 without values.
double Percentile(std::vector<double> values, double p);
// Mean, p50, p90, p99 and max as an object under `name`; nothing without values.
void AddDistribution(const std::string& name, const std::vector<double>& values, text::Json* report);
// A table of an object's values, or the object as one line of JSON. Returns the exit code.
int PrintReport(const text::Json& report, bool json);

}  // namespace hadal::cli
