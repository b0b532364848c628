// All of cleave: #include <cleave/cleave.h>
//
//   auto world = cleave::init();
//   auto mesh = cleave::init_device_mesh(world, {world.size()}, {"dp"});
//   cleave::fully_shard(*model, mesh);
//
// Narrower headers compile faster; each says what it needs.
#pragma once

#include "core/device_mesh.h"
#include "core/distribute_module.h"
#include "core/dtensor.h"
#include "core/dtensor_spec.h"
#include "core/explain.h"
#include "core/factories.h"
#include "core/init.h"
#include "core/placement.h"
#include "core/process_group.h"
#include "core/register_rule.h"
#include "core/traffic.h"
#include "strategies/checkpoint.h"
#include "strategies/fully_shard.h"
#include "strategies/optim/adamw.h"
#include "strategies/optim/clip_grad_norm.h"
#include "strategies/optim/loss_scaler.h"
#include "strategies/strategy.h"
