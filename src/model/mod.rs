//! What the network is: cells as data, layers, validated weights. No speed here.
