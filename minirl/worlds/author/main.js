import { createApp } from "vue";
import "./machine.js";
import App from "./App.vue";

createApp(App).mount("#app");
