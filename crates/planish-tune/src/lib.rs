//! Search, measure, gate and store launch configurations; knows no device, op or model.
